import scrapy
from scrapy import FormRequest


class LoginByHandSpider(scrapy.Spider):
    """The token of the form is sent back; who is logged in sees links that others do not."""

    name = "login"
    start_urls = ["http://quotes.test/login"]

    def parse(self, response):
        token = response.css('input[name="csrf_token"]::attr(value)').get()
        form = {"csrf_token": token, "username": "ann", "password": "any"}
        yield FormRequest("http://quotes.test/login", formdata=form, callback=self.logged_in)

    def logged_in(self, response):
        yield {"url": response.url, "logged in": bool(response.css('a[href="/logout"]'))}
        yield scrapy.Request("http://quotes.test/page/2/", callback=self.parse_page)

    def parse_page(self, response):
        for link in response.xpath('//a[contains(., "Goodreads")]/@href').getall():
            yield {"goodreads": link}
        yield from response.follow_all(css="li.next a", callback=self.parse_page)


class LoginFormSpider(LoginByHandSpider):
    """The form is filled from the page. It lands on the front page, which was asked for before."""

    name = "login-form"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        yield {"before": bool(response.css('a[href="/logout"]'))}
        yield response.follow("/login", self.parse_login)

    def parse_login(self, response):
        yield FormRequest.from_response(response, formdata={"username": "bob"}, callback=self.logged_in)


class SearchSpider(scrapy.Spider):
    """Two forms one after the other, to one address, with a hidden state: author, then each of its tags."""

    name = "search"
    start_urls = ["http://quotes.test/search.aspx"]

    def parse(self, response):
        for author in response.css("select#author > option ::attr(value)").getall()[:5]:
            yield FormRequest.from_response(response, formdata={"author": author}, callback=self.parse_author)

    def parse_author(self, response):
        for tag in response.css("select#tag > option ::attr(value)").getall():
            yield FormRequest.from_response(response, formdata={"tag": tag}, callback=self.parse_results)

    def parse_results(self, response):
        for quote in response.css("div.quote"):
            yield {
                "quote": quote.css("span.content::text").get(),
                "author": quote.css("span.author::text").get(),
                "tag": quote.css("span.tag::text").get(),
            }


class SearchByHandSpider(SearchSpider):
    """The same, with the state put into the request by hand."""

    name = "search-hand"

    def parse(self, response):
        for author in response.css("select#author > option ::attr(value)").getall()[5:9]:
            state = response.css("input#__VIEWSTATE::attr(value)").get()
            yield FormRequest(
                "http://quotes.test/filter.aspx",
                formdata={"author": author, "__VIEWSTATE": state},
                callback=self.parse_author,
                cb_kwargs={"author": author},
            )

    def parse_author(self, response, author):
        for tag in response.css("select#tag option ::attr(value)").getall():
            state = response.css("input#__VIEWSTATE::attr(value)").get()
            form = {"author": author, "tag": tag, "__VIEWSTATE": state}
            yield FormRequest("http://quotes.test/filter.aspx", formdata=form, callback=self.parse_results)
