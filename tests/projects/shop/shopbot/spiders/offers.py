import scrapy
from itemloaders.processors import MapCompose, TakeFirst
from scrapy.loader import ItemLoader

from shopbot.items import Offer


class OfferLoader(ItemLoader):
    default_item_class = Offer
    default_output_processor = TakeFirst()
    name_in = MapCompose(lambda text: text.strip("-"))
    price_in = MapCompose(float)


class OffersSpider(scrapy.Spider):
    """The shop through pipelines that drop and deduplicate, and through middlewares."""

    name = "offers"
    start_urls = ["http://quotes.test/shop/tools", "http://quotes.test/shop/garden"]

    def parse(self, response):
        yield from response.follow_all(css="td a", callback=self.parse_item)

    def parse_item(self, response):
        loader = OfferLoader(response=response)
        loader.add_css("name", "#item_name::text")
        loader.add_css("price", "#price b::text")
        loader.add_value("secret", "s")
        yield loader.load_item()


class MiddlewaresSpider(scrapy.Spider):
    """Each hook of a middleware once."""

    name = "middlewares"
    custom_settings = {"ITEM_PIPELINES": {}, "FEED_EXPORT_FIELDS": None, "RETRY_ENABLED": False}

    async def start(self):
        for path in ("landed", "moved", "invented", "ignored", "status/418", "status/200", "shop/old/subsection"):
            yield scrapy.Request(f"http://quotes.test/{path}", errback=self.failed, cb_kwargs={"path": path})
        yield scrapy.Request("http://nobody.test/", errback=self.failed, cb_kwargs={"path": "nobody"})

    def parse(self, response, path):
        if path == "shop/old/subsection":
            yield {"name": "before"}
            raise LookupError(path)
        signed = "echo" in response.url
        heading = response.json()["headers"].get("x-signed") if signed else response.css("h1::text").get()
        yield {"name": path, "heading": heading, "more": response.css(".more::text").get() if path == "landed" else None}
        yield response.follow("/shop/item/pliers", self.parse)

    def failed(self, failure):
        yield {"name": failure.request.cb_kwargs["path"], "failed": failure.type.__name__}
