"""Scrapy's overview and tutorial."""

from pathlib import Path

import scrapy


class OverviewSpider(scrapy.Spider):
    name = "overview"
    start_urls = ["http://quotes.test/tag/humor/"]

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {"author": quote.xpath("span/small/text()").get(), "text": quote.css("span.text::text").get()}
        next_page = response.css('li.next a::attr("href")').get()
        if next_page is not None:
            yield response.follow(next_page, self.parse)


class SavingSpider(scrapy.Spider):
    """The first spider: `start`, and pages that are saved as files."""

    name = "tutorial-files"

    async def start(self):
        for url in ["http://quotes.test/page/1/", "http://quotes.test/page/2/"]:
            yield scrapy.Request(url=url, callback=self.parse)

    def parse(self, response):
        page = response.url.split("/")[-2]
        filename = f"quotes-{page}.html"
        Path(filename).write_bytes(response.body)
        self.log(f"Saved {filename}")


class StartUrlsSpider(SavingSpider):
    """The short form."""

    name = "tutorial-start-urls"
    start_urls = ["http://quotes.test/page/1/", "http://quotes.test/page/2/"]
    start = scrapy.Spider.start


class ExtractingSpider(scrapy.Spider):
    name = "tutorial-data"
    start_urls = ["http://quotes.test/page/1/", "http://quotes.test/page/2/"]

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {
                "text": quote.css("span.text::text").get(),
                "author": quote.css("small.author::text").get(),
                "tags": quote.css("div.tags a.tag::text").getall(),
            }


class UrljoinSpider(ExtractingSpider):
    name = "tutorial-urljoin"
    start_urls = ["http://quotes.test/page/1/"]

    def parse(self, response):
        yield from super().parse(response)
        next_page = response.css("li.next a::attr(href)").get()
        if next_page is not None:
            next_page = response.urljoin(next_page)
            yield scrapy.Request(next_page, callback=self.parse)


class FollowSpider(ExtractingSpider):
    name = "tutorial-follow"
    start_urls = ["http://quotes.test/page/1/"]

    def parse(self, response):
        yield from super().parse(response)
        for anchor in response.css("ul.pager a"):
            yield response.follow(anchor, callback=self.parse)


class FollowAllSpider(ExtractingSpider):
    name = "tutorial-follow-all"
    start_urls = ["http://quotes.test/page/1/"]

    def parse(self, response):
        yield from super().parse(response)
        yield from response.follow_all(css="ul.pager a", callback=self.parse)


class AuthorSpider(scrapy.Spider):
    name = "tutorial-author"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        author_page_links = response.css(".author + a")
        yield from response.follow_all(author_page_links, self.parse_author)
        pagination_links = response.css("li.next a")
        yield from response.follow_all(pagination_links, self.parse)

    def parse_author(self, response):
        def extract_with_css(query):
            return response.css(query).get(default="").strip()

        yield {
            "name": extract_with_css("h3.author-title::text"),
            "birthdate": extract_with_css(".author-born-date::text"),
            "bio": extract_with_css(".author-description::text"),
        }


class TagArgumentSpider(scrapy.Spider):
    name = "tutorial-argument"

    async def start(self):
        url = "http://quotes.test/"
        tag = getattr(self, "tag", None)
        if tag is not None:
            url = url + "tag/" + tag
        yield scrapy.Request(url, self.parse)

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {"text": quote.css("span.text::text").get(), "author": quote.css("small.author::text").get()}
        next_page = response.css("li.next a::attr(href)").get()
        if next_page is not None:
            yield response.follow(next_page, self.parse)
