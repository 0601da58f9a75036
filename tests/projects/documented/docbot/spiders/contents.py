"""The chapters "Link Extractors", "Items", "Item Loaders" and "Item Pipeline"."""

import re

import scrapy
from itemadapter import ItemAdapter
from itemloaders.processors import Compose, Join, MapCompose, TakeFirst
from scrapy.linkextractors import LinkExtractor
from scrapy.loader import ItemLoader

from docbot.items import CleanProduct, Product, ProductAttrs, ProductData


class LinksSpider(scrapy.Spider):
    """A link extractor in a plain spider."""

    name = "links"
    start_urls = ["http://quotes.test/shop"]
    link_extractor = LinkExtractor(restrict_css="ul, table", deny="old")

    def parse(self, response):
        for link in self.link_extractor.extract_links(response):
            yield {"text": link.text, "url": link.url.split("/", 3)[3], "fragment": link.fragment}
            yield scrapy.Request(link.url, callback=self.parse)


class LinkValuesSpider(scrapy.Spider):
    """Values of attributes are made URLs, and links are processed."""

    name = "links-values"
    start_urls = ["http://quotes.test/shop"]

    def parse(self, response):
        def shop_only(value):
            found = re.search(r"/shop/(\w+)$", value)
            return f"/shop/{found[1]}?by=value" if found else None

        for link in LinkExtractor(process_value=shop_only, canonicalize=True).extract_links(response):
            yield response.follow(link, self.parse_section)

    def parse_section(self, response):
        yield {"url": response.url.split("/", 3)[3], "rows": len(response.css("tr"))}


class ItemKindsSpider(scrapy.Spider):
    """Every kind of item: a dict, an Item, a dataclass, attrs."""

    name = "items"
    start_urls = ["http://quotes.test/shop/tools"]

    def parse(self, response):
        for row in response.css("tr.row"):
            name, price = row.css("a::text").get(), row.css(".price::text").get()
            product = Product(name=name, price=1000)
            product["price"] = price
            assert "stock" not in product and "stock" in product.fields
            yield product
            yield product.deepcopy()
            yield ProductData(name=name, price=float(price or 0), stock=7)
            yield ProductAttrs(name=name, price=price)
            adapter = ItemAdapter(ProductData(name=name))
            yield adapter.asdict()


class ItemCarriedSpider(scrapy.Spider):
    """Items of each kind travel in cb_kwargs and meta, and are completed."""

    name = "items-carried"
    start_urls = ["http://quotes.test/shop/garden"]

    def parse(self, response):
        for row in response.css("tr.row"):
            name = row.css("a::text").get()
            for item in (Product(name=name), ProductData(name=name), ProductAttrs(name=name), {"name": name}):
                yield response.follow(
                    row.css("a")[0],
                    self.parse_item,
                    cb_kwargs={"item": item},
                    meta={"deep": {"items": [item, (1, item)]}},
                    dont_filter=True,
                )

    def parse_item(self, response, item):
        adapter = ItemAdapter(item)
        adapter["price"] = response.css("#price b::text").get()
        yield item
        [same, (one, again)] = response.meta["deep"]["items"]
        yield {"kind": type(item).__name__, "same": type(same).__name__, "name": ItemAdapter(again)["name"], "one": one}


class ProductLoader(ItemLoader):
    default_output_processor = TakeFirst()
    name_in = MapCompose(str.title, str.strip)
    name_out = Join()
    price_in = MapCompose(str.strip)


def strip_dashes(text):
    return text.strip("-")


class SiteLoader(ProductLoader):
    name_in = MapCompose(strip_dashes, ProductLoader.name_in)


def parse_length(text, loader_context):
    return f"{text}{loader_context.get('unit', 'm')}"


class LoaderSpider(scrapy.Spider):
    """The same fields by loaders of several kinds."""

    name = "loaders"
    start_urls = ["http://quotes.test/shop/tools"]

    def parse(self, response):
        yield from response.follow_all(css="td a", callback=self.parse_item)

    def parse_item(self, response):
        loader = ItemLoader(item=Product(), response=response)
        loader.add_xpath("name", '//td[@id="item_name"]/text()')
        loader.add_xpath("name", '//td[@class="none"]/text()')
        loader.add_css("price", "#price b::text")
        loader.add_css("stock", "p#stock")
        loader.add_value("last_updated", "today")
        yield loader.load_item()

        own = SiteLoader(item=Product(), selector=response.css("body"))
        own.add_css("name", "#item_name::text")
        own.add_css("price", "#price b::text", re=r"\d+")
        yield own.load_item()

        clean = ItemLoader(item=CleanProduct(), response=response)
        clean.add_css("name", "#item_description")
        clean.add_value("name", "<b>, indeed</b>")
        clean.add_css("price", "#price")
        clean.add_css("price", "#price b")
        yield clean.load_item()


class NestedLoaderSpider(scrapy.Spider):
    name = "loaders-nested"
    start_urls = ["http://quotes.test/shop/item/saw"]

    def parse(self, response):
        loader = ItemLoader(item={}, response=response, unit="cm")
        loader.add_css("title", "#item_name::text", Compose(TakeFirst(), strip_dashes))
        loader.add_css("length", "#item_id::text", MapCompose(parse_length), re=r"\d+")
        footer = loader.nested_xpath("//footer")
        footer.add_xpath("social", 'a[@class = "social"]/@href')
        footer.add_xpath("email", 'a[@class = "email"]/@href')
        yield loader.load_item()


class PricedSpider(scrapy.Spider):
    """What the chapter's pipelines get, one after the other."""

    name = "pipelines"
    custom_settings = {
        "ITEM_PIPELINES": {
            "docbot.pipelines.PricePipeline": 300,
            "docbot.pipelines.DuplicatesPipeline": 400,
            "docbot.pipelines.StorePipeline": 500,
            "docbot.pipelines.AsyncPipeline": 600,
            "docbot.pipelines.JsonWriterPipeline": 800,
        },
        "STORE_ADDRESS": "store://here",
    }
    start_urls = ["http://quotes.test/shop/tools", "http://quotes.test/shop/garden"]

    def parse(self, response):
        yield from response.follow_all(css="td a", callback=self.parse_item)

    def parse_item(self, response):
        price = response.css("#price b::text").get()
        yield {
            "name": response.css("#item_name::text").get().strip("-"),
            "price": float(price) if price else None,
            "price_excludes_vat": response.css("#price::attr(data-net)").get() == "1",
        }
