"""Callbacks, starts, and classes of every form."""

import asyncio

import scrapy
from scrapy import signals
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


class FormsSpider(scrapy.Spider):
    """A callback may return, yield, await, and do both."""

    name = "callback-forms"

    async def start(self):
        for number, callback in enumerate(
            [self.returns_dict, self.returns_list, self.returns_none, self.generates, self.awaits, self.agenerates, None]
        ):
            yield scrapy.Request(f"http://quotes.test/landed?{number}", callback)

    def returns_dict(self, response):
        return {"by": "dict"}

    def returns_list(self, response):
        return [{"by": "list"}, response.follow("/landed?more", self.generates), None]

    def returns_none(self, response):
        self.logger.info("nothing")

    def generates(self, response):
        yield {"by": "generator", "path": response.url.rpartition("/")[2]}
        yield None

    async def awaits(self, response):
        await asyncio.sleep(0.01)
        return [{"by": "coroutine"}]

    async def agenerates(self, response):
        for number in range(2):
            await asyncio.sleep(0.01)
            yield {"by": "async generator", "n": number}

    def parse(self, response, **kwargs):
        yield {"by": "parse"}


class ArgumentsSpider(scrapy.Spider):
    """-a becomes attributes; from_crawler sees settings; signals are connected."""

    name = "arguments"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.bot = crawler.settings["BOT_NAME"]
        crawler.signals.connect(spider.opened, signal=signals.spider_opened)
        return spider

    def __init__(self, pages="1", tag=None, **kwargs):
        super().__init__(**kwargs)
        self.pages, self.tag, self.is_open = int(pages), tag, False

    def opened(self, spider):
        self.is_open = spider is self

    async def start(self):
        for page in range(1, self.pages + 1):
            yield scrapy.Request(f"http://quotes.test/tag/{self.tag}/page/{page}/", cb_kwargs={"page": page})

    def parse(self, response, page):
        yield {"page": page, "n": len(response.css(".quote")), "bot": self.bot, "extra": self.extra, "open": self.is_open}


class StartWaitsSpider(scrapy.Spider):
    """`start` awaits, and mixes items and requests."""

    name = "start-waits"

    async def start(self):
        for page in range(1, 5):
            await asyncio.sleep(0.05)
            yield {"soon": page}
            yield scrapy.Request(f"http://quotes.test/page/{page}/", cb_kwargs={"page": page})

    def parse(self, response, page):
        yield {"page": page, "n": len(response.css(".quote"))}


class LoginFirstSpider(scrapy.Spider):
    """Logs in before it begins with its start URLs."""

    name = "login-first"
    start_urls = ["http://quotes.test/page/9/"]

    async def start(self):
        yield scrapy.Request("http://quotes.test/login", self.login)

    def login(self, response):
        return scrapy.FormRequest.from_response(response, formdata={"username": "ann"}, callback=self.check)

    async def check(self, response):
        async for request in super().start():
            yield request

    def parse(self, response):
        yield {"in": bool(response.css('a[href="/logout"]'))}


class RulesSpider(CrawlSpider):
    """Rules with everything that they can have."""

    name = "all-rules"
    start_urls = ["http://quotes.test/shop"]
    rules = [
        Rule(
            LinkExtractor(allow=r"/shop/\w+$"),
            callback="parse_section",
            cb_kwargs={"kind": "section"},
            follow=True,
            process_links="sorted_links",
        ),
        Rule(
            LinkExtractor(restrict_xpaths="//tr/td[1]"),
            callback="parse_item",
            process_request="no_nails",
            errback="failed",
        ),
    ]

    def parse_start_url(self, response, **kwargs):
        yield {"start": response.css("h1::text").get()}

    def sorted_links(self, links):
        return sorted(links, key=lambda link: link.url)

    def no_nails(self, request, response):
        if "nails" in request.url:
            return None
        if "hose" in request.url:
            return request.replace(url="http://quotes.test/status/410")
        return request.replace(meta={**request.meta, "from": response.css("h1::text").get()})

    def parse_section(self, response, kind):
        yield {"kind": kind, "title": response.css("h1::text").get()}

    def parse_item(self, response):
        yield {"item": response.css("#item_name::text").get(), "from": response.meta["from"]}

    def failed(self, failure):
        yield {"failed": failure.value.response.status}
