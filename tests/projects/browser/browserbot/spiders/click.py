import scrapy
from scrapy_playwright.page import PageMethod

ROWS = "[...document.querySelectorAll('.quote')].map(one => one.querySelector('.text').textContent)"


class ClickSpider(scrapy.Spider):
    """The buttons have no address: they are clicked, and each page's rows are read before the next click."""

    name = "click"

    async def start(self):
        for first in (1, 4, 7):
            methods = {}
            for page in range(first, first + 3):
                methods[f"rows {page}"] = PageMethod("evaluate", ROWS)
                methods[f"next {page}"] = PageMethod("click", ".pager > .next > a")
                methods[f"there {page}"] = PageMethod("wait_for_url", f"**/js-onclick/page/{page + 1}/")
            yield scrapy.Request(
                f"http://quotes.test/js-onclick/page/{first}/",
                meta={
                    "playwright": True,
                    "playwright_page_methods": methods,
                    "playwright_page_goto_kwargs": {"wait_until": "networkidle"},
                },
            )

    def parse(self, response):
        for name, method in response.meta["playwright_page_methods"].items():
            if name.startswith("rows"):
                for text in method.result:
                    yield {"text": text, "seen": name}
        for quote in response.css("div.quote"):
            yield {"text": quote.css("span.text::text").get(), "seen": response.url.partition("/js-onclick")[2]}
