"""The chapter "Requests and Responses"."""

import scrapy
from scrapy import FormRequest, Request
from scrapy.http import JsonRequest
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.internet.error import DNSLookupError, TCPTimedOutError, TimeoutError


class BookSpider(scrapy.Spider):
    """`start`, a callback for the list, a callback for the product."""

    name = "requests-callbacks"

    async def start(self):
        yield Request("http://quotes.test/shop/tools", callback=self.parse_home)

    def parse_home(self, response):
        for url in response.css("td a::attr(href)").getall():
            yield Request(response.urljoin(url), callback=self.parse_book)

    async def parse_book(self, response):
        yield {"title": response.css("#item_name::text").get()}


class KwargsSpider(scrapy.Spider):
    name = "requests-kwargs"
    start_urls = ["http://quotes.test/page/1/"]

    def parse(self, response):
        request = Request(
            "http://quotes.test/page/2/", callback=self.parse_page2, cb_kwargs={"main_url": response.url.split("/", 3)[3]}
        )
        request.cb_kwargs["foo"] = "bar"
        yield request

    def parse_page2(self, response, main_url, foo):
        yield {"main_url": main_url, "other_url": response.url.split("/", 3)[3], "foo": foo}


class ErrbackSpider(scrapy.Spider):
    name = "requests-errback"
    custom_settings = {"RETRY_TIMES": 0}
    start_urls = [
        "http://quotes.test/",
        "http://quotes.test/status/404",
        "http://quotes.test/status/500",
        "http://nobody.test/",
        "http://no-such-host.invalid/",
        "http://quotes.test/slow/4.0",
    ]

    async def start(self):
        for url in self.start_urls:
            yield Request(
                url,
                callback=self.parse_page,
                errback=self.errback,
                dont_filter=True,
                meta={"download_timeout": 1.5} if "slow" in url else {},
                cb_kwargs={"url": url},
            )

    def parse_page(self, response, url):
        yield {"url": url, "got": response.status}

    def errback(self, failure):
        self.logger.error(repr(failure))
        url = failure.request.cb_kwargs["url"]
        if failure.check(HttpError):
            yield {"url": url, "http": failure.value.response.status}
        elif failure.check(DNSLookupError):
            yield {"url": url, "error": "dns"}
        elif failure.check(TimeoutError, TCPTimedOutError):
            yield {"url": url, "error": "timeout"}
        else:
            yield {"url": url, "error": failure.type.__name__}


class ErrbackKwargsSpider(scrapy.Spider):
    name = "requests-errback-kwargs"
    start_urls = ["http://quotes.test/page/1/"]

    def parse(self, response):
        yield Request(
            "http://quotes.test/status/404",
            callback=self.parse_page2,
            errback=self.errback_page2,
            cb_kwargs={"main_url": response.css("title::text").get()},
        )

    def parse_page2(self, response, main_url):
        pass

    def errback_page2(self, failure):
        yield {"main_url": failure.request.cb_kwargs["main_url"]}


class LoginSpider(scrapy.Spider):
    """`from_response` fills the form; the callback looks whether it failed."""

    name = "requests-login"
    start_urls = ["http://quotes.test/login"]

    def parse(self, response):
        return FormRequest.from_response(
            response, formdata={"username": "john", "password": "secret"}, callback=self.after_login
        )

    def after_login(self, response):
        if b"Error while logging in" in response.body:
            self.logger.error("Login failed")
            return
        yield {"in": response.css(".header-box p a::text").get()}


class FormSpider(scrapy.Spider):
    name = "requests-form"
    start_urls = ["http://quotes.test/shop"]

    def parse(self, response):
        return [
            FormRequest(
                url="http://quotes.test/echo", formdata={"name": "John Doe", "age": "27"}, callback=self.after_post
            )
        ]

    def after_post(self, response):
        yield {"body": response.json()["body"], "type": response.json()["headers"]["content-type"]}


class JsonSpider(scrapy.Spider):
    name = "requests-json"

    async def start(self):
        yield JsonRequest(url="http://quotes.test/echo", data={"name1": "value1", "name2": ["ü", None, 2.5]})

    def parse(self, response):
        data = response.json()
        yield {"method": data["method"], "body": data["body"], "type": data["headers"]["content-type"]}


class CookieSpider(scrapy.Spider):
    """Cookies of a request, as a dict and as a list."""

    name = "requests-cookies"

    async def start(self):
        yield Request("http://quotes.test/cookies", cookies={"currency": "USD", "country": "UY"})

    def parse(self, response):
        yield response.json()
        yield Request(
            "http://quotes.test/cookies",
            self.parse_more,
            cookies=[{"name": "currency", "value": "EUR", "domain": "127.0.0.1", "path": "/cookies"}],
            dont_filter=True,
        )

    def parse_more(self, response):
        yield response.json()
        yield Request("http://quotes.test/cookies", self.parse_less, meta={"dont_merge_cookies": True}, dont_filter=True)

    def parse_less(self, response):
        yield {"none": response.json()}


class FingerprintSpider(scrapy.Spider):
    """Its own fingerprints: two URLs that differ in the fragment or a header are two requests."""

    name = "requests-fingerprint"
    custom_settings = {"REQUEST_FINGERPRINTER_CLASS": "docbot.fingerprints.ByHeader"}

    async def start(self):
        for number in (1, 2, 2, 3):
            yield Request("http://quotes.test/echo", headers={"X-ID": str(number)})

    def parse(self, response):
        yield {"id": response.json()["headers"]["x-id"]}


class AttributesSpider(scrapy.Spider):
    """What a response says of itself."""

    name = "requests-response"
    custom_settings = {"HTTPERROR_ALLOW_ALL": True}
    start_urls = [
        "http://quotes.test/latin",
        "http://quotes.test/zipped",
        "http://quotes.test/plain.txt",
        "http://quotes.test/picture.png",
        "http://quotes.test/status/418",
    ]

    def parse(self, response):
        text = getattr(response, "text", None)
        yield {
            "url": response.url.split("/", 3)[3],
            "status": response.status,
            "class": type(response).__name__,
            "encoding": getattr(response, "encoding", None),
            "text": text if text is None else text[:40],
            "bytes": len(response.body),
            "type": response.headers.get("Content-Type", b"").decode(),
            "request": [response.request.method, response.request.url == response.url],
            "depth": response.meta["depth"],
            "joined": response.urljoin("../x?y#z").split("/", 3)[3],
        }
