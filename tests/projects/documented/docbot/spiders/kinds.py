"""The chapter "Spiders"."""

from datetime import datetime

import scrapy
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, CSVFeedSpider, Rule, SitemapSpider, XMLFeedSpider

from docbot.items import Thing


class LoggingSpider(scrapy.Spider):
    name = "spiders-log"
    allowed_domains = ["quotes.test"]
    start_urls = ["http://quotes.test/page/1/", "http://quotes.test/page/2/", "http://quotes.test/page/3/"]

    def parse(self, response):
        self.logger.info("A response from %s just arrived!", response.url)


class SeveralSpider(scrapy.Spider):
    """Items and requests from one callback; every link of the page, wherever it leads, so a domain is named."""

    name = "spiders-several"
    allowed_domains = ["quotes.test"]
    start_urls = ["http://quotes.test/shop", "http://quotes.test/shop/tools", "http://quotes.test/shop/garden"]

    def parse(self, response):
        for heading in response.xpath("//h1").getall():
            yield {"title": heading}
        for href in response.xpath("//a/@href").getall():
            yield scrapy.Request(response.urljoin(href), self.parse)


class StartSpider(scrapy.Spider):
    name = "spiders-start"
    allowed_domains = ["quotes.test"]

    async def start(self):
        yield scrapy.Request("http://quotes.test/shop", self.parse)
        yield scrapy.Request("http://quotes.test/shop/tools", self.parse)
        yield scrapy.Request("http://quotes.test/shop/garden", self.parse)

    def parse(self, response):
        for heading in response.xpath("//h1/text()").getall():
            yield Thing(name=heading)
        for href in response.xpath("//a/@href").getall():
            yield scrapy.Request(response.urljoin(href), self.parse)


class StartLoginSpider(scrapy.Spider):
    """The first request is a POST."""

    name = "spiders-start-post"

    async def start(self):
        form = {"user": "john", "pass": "secret"}
        yield scrapy.FormRequest("http://quotes.test/echo", formdata=form, callback=self.logged_in)

    def logged_in(self, response):
        yield {"method": response.json()["method"], "body": response.json()["body"]}


class StartItemSpider(scrapy.Spider):
    """`start` gives items too."""

    name = "spiders-start-item"

    async def start(self):
        yield {"name": "from start"}
        yield Thing(id="1", name="another")
        yield scrapy.Request("http://quotes.test/shop")

    def parse(self, response):
        yield Thing(id="2", name=response.css("h1::text").get())


class ArgumentSpider(scrapy.Spider):
    name = "spiders-argument"

    def __init__(self, category=None, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.start_urls = [f"http://quotes.test/shop/{category}"]

    def parse(self, response):
        yield {"category": response.css("h1::text").get(), "rows": response.css("tr a::text").getall()}


class UserAgentSpider(scrapy.Spider):
    """An attribute that a middleware of Scrapy's reads; it may come by -a."""

    name = "spiders-user-agent"
    user_agent = "as the class says"
    start_urls = ["http://quotes.test/echo"]

    def parse(self, response):
        yield {"agent": response.json()["headers"]["user-agent"]}


class SettingsSpider(scrapy.Spider):
    """Settings of one spider, by the class attribute and by the class method."""

    name = "spiders-settings"
    custom_settings = {"USER_AGENT": "of the spider", "DEFAULT_REQUEST_HEADERS": {"X-Default": "1", "Accept-Language": "da"}}
    start_urls = ["http://quotes.test/echo"]

    @classmethod
    def update_settings(cls, settings):
        super().update_settings(settings)
        settings.set("MY_OWN", "mine", priority="spider")

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.mine = crawler.settings["MY_OWN"]
        return spider

    def parse(self, response):
        yield {"headers": response.json()["headers"], "mine": self.mine, "again": self.settings["MY_OWN"]}


class RulesSpider(CrawlSpider):
    name = "spiders-rules"
    allowed_domains = ["quotes.test"]
    start_urls = ["http://quotes.test/shop"]

    rules = (
        Rule(LinkExtractor(allow=(r"/shop/\w+$",), deny=("subsection",))),
        Rule(LinkExtractor(allow=(r"/shop/item/",)), callback="parse_item"),
    )

    def parse_item(self, response):
        item = Thing()
        item["id"] = response.xpath('//td[@id="item_id"]/text()').re(r"ID: (\d+)")
        item["name"] = response.xpath('//td[@id="item_name"]/text()').get()
        item["description"] = response.xpath('//td[@id="item_description"]/text()').get()
        item["link_text"] = response.meta["link_text"]
        url = response.xpath('//a[@id="more"]/@href').get()
        # The hammer is in two sections, under two addresses, and its second page is one: whichever comes first has it.
        return response.follow(url, self.parse_additional_page, cb_kwargs={"item": item}, dont_filter=True)

    def parse_additional_page(self, response, item):
        item["additional_data"] = response.xpath('//p[@id="additional_data"]/text()').get()
        return item


class FeedSpider(XMLFeedSpider):
    name = "spiders-xml"
    allowed_domains = ["quotes.test"]
    start_urls = ["http://quotes.test/feed.xml"]
    iterator = "iternodes"
    itertag = "item"

    def parse_node(self, response, node):
        self.logger.info("Hi, this is a <%s> node!: %s", self.itertag, "".join(node.getall()))
        item = Thing()
        item["id"] = node.xpath("@id").get()
        item["name"] = node.xpath("name/text()").get()
        item["description"] = node.xpath("description/text()").get()
        return item


class NamespaceFeedSpider(XMLFeedSpider):
    name = "spiders-xml-namespace"
    start_urls = ["http://quotes.test/sitemap.xml"]
    iterator = "xml"
    namespaces = [("n", "http://www.sitemaps.org/schemas/sitemap/0.9")]
    itertag = "n:url"

    def parse_node(self, response, node):
        yield {"year": node.xpath("n:lastmod/text()").get()[:4]}


class CsvSpider(CSVFeedSpider):
    name = "spiders-csv"
    allowed_domains = ["quotes.test"]
    start_urls = ["http://quotes.test/feed.csv"]
    delimiter = ";"
    quotechar = "'"
    headers = ["id", "name", "description"]

    def parse_row(self, response, row):
        self.logger.info("Hi, this is a row!: %r", row)
        return Thing(id=row["id"], name=row["name"], description=row["description"])


class MapSpider(SitemapSpider):
    name = "spiders-sitemap"
    sitemap_urls = ["http://quotes.test/sitemap.xml"]

    def parse(self, response):
        yield {"title": response.css("title::text").get(), "path": response.url.split("/", 3)[3]}


class MapRulesSpider(SitemapSpider):
    name = "spiders-sitemap-rules"
    sitemap_urls = ["http://quotes.test/sitemap_shop.xml"]
    sitemap_rules = [("/item/", "parse_product"), ("/shop/", "parse_category")]

    def parse_product(self, response):
        yield {"product": response.css("#item_name::text").get()}

    def parse_category(self, response):
        yield {"category": response.css("h1::text").get()}


class MapRobotsSpider(SitemapSpider):
    name = "spiders-sitemap-robots"
    sitemap_urls = ["http://quotes.test/robots.txt"]
    sitemap_rules = [("/shop/", "parse_shop")]
    sitemap_follow = ["/sitemap_shop"]

    def parse_shop(self, response):
        yield {"path": response.url.split("/", 3)[3]}


class MapOtherUrlsSpider(SitemapSpider):
    name = "spiders-sitemap-others"
    sitemap_urls = ["http://quotes.test/robots.txt"]
    sitemap_rules = [("/shop/", "parse_shop")]
    other_urls = ["http://quotes.test/landed"]

    async def start(self):
        async for item_or_request in super().start():
            yield item_or_request
        for url in self.other_urls:
            yield scrapy.Request(url, self.parse_other)

    def parse_shop(self, response):
        yield {"shop": response.url.split("/", 3)[3]}

    def parse_other(self, response):
        yield {"other": response.css("h1::text").get()}


class MapFilteredSpider(SitemapSpider):
    name = "spiders-sitemap-filter"
    allowed_domains = ["quotes.test"]
    sitemap_urls = ["http://quotes.test/sitemap.xml"]
    sitemap_alternate_links = True

    def sitemap_filter(self, entries):
        for entry in entries:
            date_time = datetime.strptime(entry["lastmod"], "%Y-%m-%d")
            if date_time.year >= 2005 or "alternate" in entry:
                yield entry

    def parse(self, response):
        yield {"path": response.url.split("/", 3)[3]}
