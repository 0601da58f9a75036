import scrapy
from scrapy import FormRequest


class WholeSpider(scrapy.Spider):
    """Sessions, forms, data carried along and a chain at once: what a kill may hit."""

    name = "whole"

    async def start(self):
        yield scrapy.Request("http://quotes.test/", self.parse_front, dont_filter=True)
        yield scrapy.Request("http://quotes.test/search.aspx", self.parse_search, meta={"cookiejar": "search"})
        yield scrapy.Request("http://quotes.test/page/1/", self.parse_page, meta={"cookiejar": "pages"})
        for jar in range(2):
            carried = {"steps": 6}
            yield scrapy.Request(
                f"http://quotes.test/basket/{jar}",
                self.parse_basket,
                meta={"cookiejar": jar},
                cb_kwargs=carried,
                dont_filter=True,
            )
        yield scrapy.Request(
            "http://quotes.test/landed", self.parse_chain, cb_kwargs={"left": 12}, meta={"cookiejar": "chain"}
        )

    def parse_front(self, response):
        yield {"before": bool(response.css('a[href="/logout"]'))}
        yield response.follow("/login", self.parse_login)

    def parse_login(self, response):
        yield FormRequest.from_response(response, formdata={"username": "ann"}, callback=self.logged_in)

    def logged_in(self, response):
        yield {"landed": response.url, "in": bool(response.css('a[href="/logout"]'))}
        yield response.follow("/page/8/", self.parse_goodreads)

    def parse_goodreads(self, response):
        for link in response.xpath('//a[contains(., "Goodreads")]/@href').getall():
            yield {"goodreads": link}
        yield from response.follow_all(css="li.next a", callback=self.parse_goodreads)

    def parse_search(self, response):
        for author in response.css("select#author > option ::attr(value)").getall()[5:8]:
            yield FormRequest.from_response(
                response, formdata={"author": author}, callback=self.parse_author, meta={"cookiejar": "search"}
            )

    def parse_author(self, response):
        for tag in response.css("select#tag > option ::attr(value)").getall():
            yield FormRequest.from_response(
                response, formdata={"tag": tag}, callback=self.parse_results, meta={"cookiejar": "search"}
            )

    def parse_results(self, response):
        for quote in response.css("div.quote"):
            yield {"quote": quote.css("span.content::text").get(), "tag": quote.css("span.tag::text").get()}

    def parse_page(self, response):
        for quote in response.css("div.quote"):
            carried = {"quote": {"text": quote.css(".text::text").get(), "tags": tuple(quote.css(".tag::text").getall())}}
            yield response.follow(
                quote.css("a")[0], self.parse_about, cb_kwargs=carried, dont_filter=True, meta={"cookiejar": "pages"}
            )
        if "/page/3/" not in response.url:
            yield from response.follow_all(css="li.next a", callback=self.parse_page, meta={"cookiejar": "pages"})

    def parse_about(self, response, quote):
        yield {"text": quote["text"], "tags": list(quote["tags"]), "born": response.css(".author-born-date::text").get()}

    def parse_basket(self, response, steps):
        if steps:
            yield response.follow(
                response.css("a.next")[0],
                self.parse_basket,
                meta={"cookiejar": response.meta["cookiejar"]},
                cb_kwargs={"steps": steps - 1},
                dont_filter=True,
            )
        else:
            yield {"jar": response.meta["cookiejar"], "held": response.css(".held::text").get()}

    def parse_chain(self, response, left):
        yield {"left": left}
        if left:
            yield scrapy.Request(
                response.url, self.parse_chain, cb_kwargs={"left": left - 1}, dont_filter=True, meta={"cookiejar": "chain"}
            )
