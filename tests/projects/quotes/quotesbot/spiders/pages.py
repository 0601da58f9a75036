import scrapy

from quotesbot.items import QuoteItem


class PagesSpider(scrapy.Spider):
    """Follows the button with CSS selectors."""

    name = "pages"
    allowed_domains = ["quotes.test"]
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {
                "text": quote.css("span.text::text").get(),
                "author": quote.css("small.author::text").get(),
                "tags": quote.css("div.tags a.tag::text").getall(),
            }
        next_page = response.css("li.next a::attr(href)").get()
        if next_page is not None:
            yield response.follow(next_page, self.parse)


class PagesXPathSpider(scrapy.Spider):
    """The same with XPath, urljoin, and items of a class."""

    name = "pages-xpath"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        for quote in response.xpath('//div[@class="quote"]'):
            yield QuoteItem(
                text=quote.xpath('./span[@class="text"]/text()').get(),
                author=quote.xpath('.//small[@class="author"]/text()').get(),
                tags=quote.xpath('.//div[@class="tags"]/a[@class="tag"]/text()').getall(),
            )
        href = response.xpath('//li[@class="next"]/a/@href').get()
        if href:
            yield scrapy.Request(response.urljoin(href))


class TableSpider(scrapy.Spider):
    """The layout with a table: quote and tags stand in rows that follow each other."""

    name = "table"
    start_urls = ["http://quotes.test/tableful/"]

    def parse(self, response):
        for row in response.xpath('//tr[./td[contains(., "Author: ")]]'):
            text, author = row.xpath("normalize-space(./td)").re(r"(.+) Author: (.+)")
            tags = row.xpath("./following-sibling::tr[1]//a/text()").getall()
            yield QuoteItem(text=text, author=author, tags=tags)
        yield from response.follow_all(xpath='//a[contains(., "Next")]')


class TagsSpider(scrapy.Spider):
    """Each of the ten tags, page by page; what is known of the tag travels along."""

    name = "tags"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        for link in response.css(".tag-item a"):
            about = {"tag": link.css("::text").get(), "px": link.re_first(r"font-size: (\d+)px")}
            yield response.follow(link, self.parse_tag, cb_kwargs={"about": about, "page": 1})

    def parse_tag(self, response, about, page):
        for text in response.css(".quote .text::text").getall():
            yield {"text": text, "page": page, **about}
        for link in response.css("li.next a"):
            yield response.follow(link, self.parse_tag, cb_kwargs={"about": about, "page": page + 1})


class RandomSpider(scrapy.Spider):
    """One URL six times; what it answers is left to chance, so the item has none of it."""

    name = "random"

    async def start(self):
        for number in range(6):
            yield scrapy.Request("http://quotes.test/random", dont_filter=True, cb_kwargs={"number": number})

    def parse(self, response, number):
        yield {"number": number, "quotes": len(response.css(".quote"))}
