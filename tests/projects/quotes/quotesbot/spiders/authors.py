import scrapy
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


class AuthorsSpider(scrapy.Spider):
    """Authors by a second callback; each is asked for once, whoever links there."""

    name = "authors"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        yield from response.follow_all(css=".author + a", callback=self.parse_author)
        yield from response.follow_all(css="li.next a", callback=self.parse)

    def parse_author(self, response):
        def extract(query):
            return response.css(query).get(default="").strip()

        yield {
            "name": extract("h3.author-title::text"),
            "birthdate": extract(".author-born-date::text"),
            "bio": extract(".author-description::text"),
        }


class QuotesWithAuthorsSpider(scrapy.Spider):
    """A quote with its author's data, which a second page has: the quote travels as keyword arguments."""

    name = "authors-kwargs"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        for quote in response.css("div.quote"):
            carried = {"quote": {"text": quote.css(".text::text").get(), "tags": quote.css(".tag::text").getall()}}
            yield response.follow(
                quote.css("a::attr(href)").get(), self.parse_author, cb_kwargs=carried, dont_filter=True
            )
        for link in response.css("li.next a"):
            yield response.follow(link)

    def parse_author(self, response, quote):
        yield quote | {"born": response.css(".author-born-date::text").get()}


class QuotesWithAuthorsMetaSpider(QuotesWithAuthorsSpider):
    """The same in meta."""

    name = "authors-meta"

    def parse(self, response):
        for quote in response.css("div.quote"):
            request = response.follow(quote.css("a")[0], callback=self.parse_author, dont_filter=True)
            request.meta["quote"] = {"text": quote.css(".text::text").get(), "at": (1, 2)}
            yield request
        yield from response.follow_all(css="li.next a")

    def parse_author(self, response):
        quote = response.meta["quote"]
        yield {"text": quote["text"], "at": list(quote["at"]), "born": response.css(".author-born-date::text").get()}


class SiteSpider(CrawlSpider):
    """Rules: pages and tags are followed, authors parsed."""

    name = "rules"
    allowed_domains = ["quotes.test"]
    start_urls = ["http://quotes.test/"]
    rules = (
        Rule(LinkExtractor(allow=r"/page/\d+/$", deny=r"/tag/")),
        Rule(LinkExtractor(allow=r"/author/", restrict_css=".quote"), callback="parse_author"),
        Rule(LinkExtractor(allow=r"/tag/", restrict_css=".tags-box"), callback="parse_tag", follow=False),
    )

    def parse_author(self, response):
        yield {"author": response.css("h3::text").get(), "link": response.meta["link_text"]}

    def parse_tag(self, response):
        yield {"tag": response.url.rstrip("/").rpartition("/")[2], "quotes": len(response.css(".quote"))}
