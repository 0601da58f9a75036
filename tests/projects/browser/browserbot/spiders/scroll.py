import scrapy
from scrapy_playwright.page import PageMethod

DOWN = "window.scrollTo(0, document.body.scrollHeight)"


class ScrollSpider(scrapy.Spider):
    """The page that scrolls without end: down, until the next ten quotes are there."""

    name = "scroll"

    async def start(self):
        methods = [PageMethod("wait_for_selector", "div.quote")]
        for row in range(11, 101, 10):
            methods += [PageMethod("evaluate", DOWN), PageMethod("wait_for_selector", f"div.quote:nth-child({row})")]
        methods += [
            PageMethod("evaluate", "document.querySelectorAll('div.quote').length"),
            PageMethod("screenshot", full_page=False),
        ]
        yield scrapy.Request(
            "http://quotes.test/scroll", meta={"playwright": True, "playwright_page_methods": methods}
        )

    def parse(self, response):
        *_, count, picture = response.meta["playwright_page_methods"]
        for quote in response.css("div.quote"):
            yield {
                "text": quote.css("span.text::text").get(),
                "author": quote.css("small.author::text").get(),
                "of": count.result,
                "picture": picture.result[1:4].decode(),
            }
