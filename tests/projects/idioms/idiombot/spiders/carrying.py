"""What travels with a request."""

from datetime import date, datetime, timezone
from decimal import Decimal

import scrapy
from itemadapter import ItemAdapter

from idiombot.items import Basket, Note


class TwoCallbacksSpider(scrapy.Spider):
    """One URL for two callbacks, and a page that is asked for again by another."""

    name = "two-callbacks"
    start_urls = ["http://quotes.test/page/1/"]

    def parse(self, response):
        yield {"by": "parse", "quotes": len(response.css(".quote"))}
        yield response.follow("/page/2/", self.first)
        yield response.follow("/page/2/", self.second, dont_filter=True)
        yield response.follow("/page/2/", self.never)  # known

    def first(self, response):
        yield {"by": "first", "text": response.css(".text::text").get()}

    def second(self, response):
        yield {"by": "second", "text": response.css(".text::text").get()}
        yield scrapy.Request(response.url, self.third, dont_filter=True)

    def third(self, response):
        yield {"by": "third", "text": response.css(".author::text").get()}

    def never(self, response):
        yield {"by": "never"}


class ValuesSpider(scrapy.Spider):
    """Values of every kind, nested, in cb_kwargs and meta."""

    name = "values"

    async def start(self):
        when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
        basket = Basket("ann", ["saw", ("rake", 2)], when, Decimal("1.10"), date(2026, 1, 2))
        carried = {
            "nothing": None,
            "bytes": b"\x00\xff",
            "when": when,
            "day": date(2026, 1, 2),
            "price": Decimal("12.50"),
            "pair": (1, (2, [3])),
            "names": {"a", "b"},
            "big": 2**70,
            "float": 0.1,
            "keys": {1: "one", "two": {"three": 3}},
            "note": Note(text="n", tags=["x", ("y",)], inner=Note(text="in")),
            "basket": basket,
        }
        yield scrapy.Request("http://quotes.test/landed", cb_kwargs=carried, meta={"again": carried})

    def parse(self, response, **carried):
        for name, value in carried.items():
            yield {"name": name, "type": type(value).__name__, "value": repr(value)}  # a set of two has an order
        again = response.meta["again"]
        yield {"equal": sorted(name for name in carried if again[name] == carried[name])}
        yield {"owner": ItemAdapter(carried["basket"])["owner"], "inner": type(carried["note"]["inner"]).__name__}


class PassedOnSpider(scrapy.Spider):
    """meta is copied from page to page and grows."""

    name = "passed-on"
    start_urls = ["http://quotes.test/page/1/"]

    def parse(self, response):
        trail = [*response.meta.get("trail", []), response.css(".author::text").get()]
        link = response.css("li.next a::attr(href)").get()
        if link and len(trail) < 5:
            yield response.follow(link, meta={"trail": trail, "depth": response.meta["depth"]})
        else:
            yield {"trail": trail}


class ChainSpider(scrapy.Spider):
    """A page that asks for itself."""

    name = "chain"

    async def start(self):
        yield scrapy.Request("http://quotes.test/landed", cb_kwargs={"left": 6}, dont_filter=True)

    def parse(self, response, left):
        yield {"left": left}
        if left:
            yield scrapy.Request(response.url, cb_kwargs={"left": left - 1}, dont_filter=True)


class ReplacedSpider(scrapy.Spider):
    """`response.request.replace` and `copy`: the answer knows what was asked."""

    name = "replaced"

    async def start(self):
        yield scrapy.Request(
            "http://quotes.test/echo", self.parse, method="PUT", body="first", headers={"X-One": "1"}, meta={"n": 0}
        )

    def parse(self, response):
        data, number = response.json(), response.meta["n"]
        yield {"n": number, "method": data["method"], "body": data["body"], "x": data["headers"].get("x-one")}
        if number < 3:
            request = response.request.replace(body=f"again {number}", meta={"n": number + 1})
            request.headers["X-One"] = str(number + 2)
            yield request


class TwoPostsSpider(scrapy.Spider):
    """Two POSTs to one URL are two requests; the same one again is not."""

    name = "two-posts"

    async def start(self):
        for form in ({"a": "1"}, {"a": "2"}, {"a": "1"}):
            yield scrapy.FormRequest("http://quotes.test/echo", formdata=form)

    def parse(self, response):
        yield {"body": response.json()["body"]}


class PrioritySpider(scrapy.Spider):
    """Priorities of any size, and a depth that sets them."""

    name = "priorities"
    custom_settings = {"DEPTH_PRIORITY": 1, "DEPTH_STATS_VERBOSE": True}

    async def start(self):
        for priority in (0, 5, -100_000, 100_000):
            yield scrapy.Request(f"http://quotes.test/echo?p={priority}", priority=priority)

    def parse(self, response):
        yield {"args": response.json()["args"], "depth": response.meta["depth"]}
        if response.meta["depth"] < 2:
            yield response.follow(response.url + "x")


class DepthSpider(scrapy.Spider):
    """A limit of depth."""

    name = "depth"
    custom_settings = {"DEPTH_LIMIT": 3}
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        yield {"path": response.url.split("/", 3)[3], "depth": response.meta["depth"]}
        yield from response.follow_all(css="li.next a")


class OffsiteSpider(scrapy.Spider):
    """Another host, with and without leave."""

    name = "offsite"
    allowed_domains = ["quotes.test"]
    start_urls = ["http://quotes.test/shop"]

    def parse(self, response):
        yield {"url": response.url}
        yield scrapy.Request("http://other.test/shop/tools", self.parse_other)
        yield scrapy.Request("http://other.test/shop/garden", self.parse_other, dont_filter=True)
        yield scrapy.Request("http://other.test/shop", self.parse_other, meta={"allow_offsite": True})
        yield scrapy.Request("http://quotes.test/to?url=http://other.test/landed", self.parse_other)

    def parse_other(self, response):
        yield {"other": response.url}
