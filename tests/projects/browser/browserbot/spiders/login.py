import scrapy
from scrapy_playwright.page import PageMethod


class LoginSpider(scrapy.Spider):
    """Fills the form and sends it; who is logged in sees links that others do not, on all pages of the session."""

    name = "login"
    custom_settings = {"PLAYWRIGHT_PROCESS_REQUEST_HEADERS": None}  # the form is sent with the browser's own headers

    async def start(self):
        methods = [
            PageMethod("fill", "#username", "ann"),
            PageMethod("fill", "#password", "hush"),
            PageMethod("click", "input[type=submit]"),
            PageMethod("wait_for_selector", "a[href='/logout']"),
        ]
        yield scrapy.Request("http://quotes.test/login", meta=self.shown(methods))

    def shown(self, methods):
        return {"playwright": True, "playwright_context": "session", "playwright_page_methods": methods}

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {
                "page": response.url.rpartition(":")[2].partition("/")[2],
                "text": quote.css("span.text::text").get(),
                "goodreads": quote.css("a[href*=goodreads]::attr(href)").get(),
            }
        for href in response.css("li.next a::attr(href)").getall():
            yield response.follow(href, meta=self.shown([]))
