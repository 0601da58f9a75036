"""Errors, redirects, cookies, headers."""

import scrapy
from scrapy.downloadermiddlewares.retry import RetryMiddleware, get_retry_request
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.spidermiddlewares.httperror import HttpError


def path(url):
    return url.split("/", 3)[3]


class StatusSpider(scrapy.Spider):
    """Which answers come to the callback, which to the errback."""

    name = "statuses"
    handle_httpstatus_list = [404]
    custom_settings = {"RETRY_ENABLED": False}

    async def start(self):
        for code in (200, 204, 400, 404, 410, 500, 503):
            yield scrapy.Request(f"http://quotes.test/status/{code}", errback=self.failed)
        for code, meta in [
            (403, {"handle_httpstatus_list": [403]}),
            (451, {"handle_httpstatus_all": True}),
            (502, {"handle_httpstatus_list": [502], "dont_retry": True}),
        ]:
            yield scrapy.Request(f"http://quotes.test/status/{code}", meta=meta, errback=self.failed)

    def parse(self, response):
        yield {"came": response.status, "heading": response.css("h1::text").get()}

    def failed(self, failure):
        error = failure.value
        yield {"type": type(error).__name__, "status": error.response.status if isinstance(error, HttpError) else None}


class RetrySpider(scrapy.Spider):
    """What fails first and answers later; what fails for good."""

    name = "retries"
    custom_settings = {"RETRY_TIMES": 2, "RETRY_PRIORITY_ADJUST": 0}

    async def start(self):
        yield scrapy.Request("http://quotes.test/flaky/1/one", errback=self.failed)
        yield scrapy.Request("http://quotes.test/flaky/2/two", errback=self.failed)
        yield scrapy.Request("http://quotes.test/flaky/9/never", errback=self.failed)
        yield scrapy.Request("http://quotes.test/flaky/3/more", meta={"max_retry_times": 4}, errback=self.failed)
        yield scrapy.Request("http://quotes.test/flaky/1/dont", meta={"dont_retry": True}, errback=self.failed)

    def parse(self, response):
        yield {"ok": response.css("h1::text").get(), "retries": response.meta.get("retry_times", 0)}

    def failed(self, failure):
        yield {"failed": failure.value.response.css("h1::text").get(), "status": failure.value.response.status}


class GetRetrySpider(scrapy.Spider):
    """A callback that asks for its page again, with Scrapy's helper."""

    name = "retry-by-callback"
    start_urls = ["http://quotes.test/landed"]

    def parse(self, response):
        times = response.meta.get("retry_times", 0)
        yield {"times": times}
        request = get_retry_request(response.request, spider=self, reason="empty", max_retry_times=3)
        if request:
            yield request


class OwnRetryMiddleware(RetryMiddleware):
    """A page that says "GET" is taken for a ban the first time."""

    def process_response(self, request, response, spider=None):
        if b"<h1>GET" in response.body and not request.meta.get("retry_times"):
            return self._retry(request, "banned") or response
        return response


class OwnRetrySpider(scrapy.Spider):
    """A subclass of the retry middleware in place of it."""

    name = "retry-subclass"
    custom_settings = {
        "DOWNLOADER_MIDDLEWARES": {
            "scrapy.downloadermiddlewares.retry.RetryMiddleware": None,
            "idiombot.spiders.answers.OwnRetryMiddleware": 550,
        }
    }
    start_urls = ["http://quotes.test/landed", "http://quotes.test/status/503"]
    handle_httpstatus_list = [503]

    def parse(self, response):
        yield {"path": path(response.url), "status": response.status, "retries": response.meta.get("retry_times", 0)}


class NobodySpider(scrapy.Spider):
    """Hosts that refuse, do not exist, or do not answer; the errback asks for another page."""

    name = "nobody"
    custom_settings = {"RETRY_ENABLED": False, "DOWNLOAD_TIMEOUT": 1.5}

    async def start(self):
        for url in ("http://nobody.test/", "http://no-such-host.invalid/", "http://quotes.test/slow/4.0"):
            yield scrapy.Request(url, self.parse, errback=self.failed, cb_kwargs={"asked": url}, meta={"why": [url]})

    def parse(self, response, asked):
        yield {"got": asked}

    def failed(self, failure):
        request = failure.request
        yield {"failed": request.cb_kwargs["asked"], "why": request.meta["why"], "type": failure.type.__name__}
        yield scrapy.Request("http://quotes.test/landed", self.after, dont_filter=True, cb_kwargs={"of": request.url})

    def after(self, response, of):
        yield {"after": of}


class RedirectSpider(scrapy.Spider):
    """Redirects take everything along; what is known of them is in meta."""

    name = "redirects"

    async def start(self):
        for code in (301, 302, 303, 307, 308):
            url = f"http://quotes.test/hop/2?code={code}"
            yield scrapy.Request(url, cb_kwargs={"code": code}, meta={"mine": code}, dont_filter=True)
            yield scrapy.Request(
                url, method="POST", body=f"b={code}", cb_kwargs={"code": -code}, headers={"Content-Type": "text/plain"}, dont_filter=True
            )
        yield scrapy.Request("http://quotes.test/hop/1?stay", self.stayed, meta={"dont_redirect": True, "handle_httpstatus_list": [302]})
        yield scrapy.Request("http://quotes.test/hop/30", self.stayed, errback=self.failed)
        yield scrapy.Request("http://quotes.test/refresh", self.refreshed)

    def parse(self, response, code):
        yield {
            "code": code,
            "body": response.text,
            "times": response.meta.get("redirect_times"),
            "urls": [path(url) for url in response.meta.get("redirect_urls", [])],
            "reasons": response.meta.get("redirect_reasons"),
            "mine": response.meta.get("mine"),
        }

    def stayed(self, response):
        yield {"status": response.status, "to": response.headers["Location"].decode()}

    def refreshed(self, response):
        yield {"refreshed": path(response.url), "urls": [path(url) for url in response.meta["redirect_urls"]]}

    def failed(self, failure):
        yield {"too many": failure.type.__name__, "is": failure.check(IgnoreRequest) is not None}


class JarsSpider(scrapy.Spider):
    """Several sessions side by side, each with a jar of its own."""

    name = "jars"

    async def start(self):
        for jar in range(3):
            yield scrapy.Request(
                f"http://quotes.test/basket/{jar}", meta={"cookiejar": jar}, cb_kwargs={"steps": 3}, dont_filter=True
            )

    def parse(self, response, steps):
        if steps:
            yield response.follow(
                response.css("a.next")[0],
                meta={"cookiejar": response.meta["cookiejar"]},
                cb_kwargs={"steps": steps - 1},
                dont_filter=True,
            )
        else:
            yield {"jar": response.meta["cookiejar"], "held": response.css(".held::text").get()}


class CookiesSpider(scrapy.Spider):
    """Set by an answer, by a redirect, by a request; sent, left out, overridden."""

    name = "cookies"

    async def start(self):
        yield scrapy.Request("http://quotes.test/cookies/set/a/1")

    def parse(self, response):
        yield {"after redirect": response.json()}
        again = {"dont_filter": True, "callback": self.show}
        yield scrapy.Request("http://quotes.test/cookies?1", cookies={"b": "2"}, priority=3, **again)

    def show(self, response):
        yield {path(response.url): response.json()}
        again = {"dont_filter": True, "callback": self.show_last}
        yield scrapy.Request("http://quotes.test/cookies?2", **again)
        yield scrapy.Request("http://quotes.test/cookies?3", meta={"dont_merge_cookies": True}, **again)
        yield scrapy.Request("http://quotes.test/cookies?4", headers={"Cookie": "by=hand"}, meta={"cookiejar": "x"}, **again)

    def show_last(self, response):
        yield {path(response.url): response.json()}


class HeadersSpider(scrapy.Spider):
    """Headers of the project, of a request, of none; the referer; basic authentication."""

    name = "headers"
    custom_settings = {
        "DEFAULT_REQUEST_HEADERS": {"Accept-Language": "en", "X-Every": "yes"},
        "USER_AGENT": "idioms/1",
        "HTTPAUTH_USER": "ann",
        "HTTPAUTH_PASS": "hush",
        "HTTPAUTH_DOMAIN": None,
    }

    async def start(self):
        yield scrapy.Request("http://quotes.test/echo?1", headers={"X-Mine": ["a", "b"], "Accept-Language": "fr"})
        yield scrapy.Request("http://quotes.test/echo?2", headers={"User-Agent": "other", "X-Every": None})
        yield scrapy.Request("http://quotes.test/private", self.inside)

    def parse(self, response):
        headers = response.json()["headers"]
        headers["referer"] = path(headers["referer"]) if "referer" in headers else None
        yield {"path": path(response.url), **headers}
        if response.url.endswith("1"):
            yield response.follow("/echo?from1")

    def inside(self, response):
        yield {"inside": response.css("h1::text").get()}


class AfterThreeSpider(scrapy.Spider):
    """An exception after three items: they stay, and so does the request before it."""

    name = "after-three"
    start_urls = ["http://quotes.test/page/1/", "http://quotes.test/page/2/"]

    def parse(self, response):
        for number, text in enumerate(response.css(".text::text").getall()):
            if number == 3:
                yield response.follow("/page/3/", self.parse_other)
                raise ValueError(text)
            yield {"text": text}

    def parse_other(self, response):
        yield {"other": response.css(".text::text").get()}


class ClosingSpider(scrapy.Spider):
    """CloseSpider ends the job; what was given before it stays."""

    name = "closing"
    custom_settings = {"CONCURRENT_REQUESTS": 1}
    start_urls = ["http://quotes.test/page/1/"]

    def parse(self, response):
        yield {"path": path(response.url)}
        if "/page/4/" in response.url:
            raise CloseSpider("enough")
        yield from response.follow_all(css="li.next a")


class RobotsSpider(scrapy.Spider):
    """robots.txt is obeyed; the errback gets what it forbids."""

    name = "robots"
    custom_settings = {"ROBOTSTXT_OBEY": True}

    async def start(self):
        yield scrapy.Request("http://quotes.test/forbidden", errback=self.failed)
        yield scrapy.Request("http://quotes.test/landed", errback=self.failed)

    def parse(self, response):
        yield {"got": path(response.url)}

    def failed(self, failure):
        yield {"refused": path(failure.request.url), "type": failure.type.__name__}
