from itemadapter import ItemAdapter, is_item
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse


class Marking:
    """Of the spider's outputs: items are marked, some requests dropped, one added; start is seen too."""

    async def process_start(self, start):
        async for one in start:
            if isinstance(one, Request):
                one.meta["by"] = "start"
            yield one

    def process_spider_input(self, response):
        if response.url.endswith("/status/200"):
            raise ValueError("not for the spider")

    def process_spider_output(self, response, result):
        for one in result:
            if is_item(one):
                ItemAdapter(one)["by"] = response.meta.get("by", "link")
                yield one
            elif "pliers" not in one.url:
                yield one

    async def process_spider_output_async(self, response, result):
        async for one in result:
            for marked in self.process_spider_output(response, [one]):
                yield marked


class Rescuing:
    """An exception of a callback becomes an item."""

    def process_spider_exception(self, response, exception):
        if isinstance(exception, LookupError):
            return [{"name": f"rescued {exception.args[0]}", "price": 1.0}]
        return None


class Signing:
    """A header for each request; one that asks for nothing is ignored, one goes elsewhere."""

    def process_request(self, request):
        request.headers["X-Signed"] = "yes"
        if "ignored" in request.url:
            raise IgnoreRequest("as agreed")
        if request.url.endswith("/moved"):
            return request.replace(url="http://quotes.test/echo?moved")
        return None


class Answering:
    """Answers itself for one address, without the network."""

    def process_request(self, request):
        if request.url.endswith("/invented"):
            return HtmlResponse(request.url, body=b"<h1>invented</h1>", request=request)
        return None


class Mending:
    """Answers are changed, asked for again; failures become answers."""

    def process_response(self, request, response):
        if response.status == 418:
            return request.replace(url="http://quotes.test/echo?tea")
        if "/landed" in response.url:
            return response.replace(body=response.body + b"<p class=more>mended</p>")
        return response

    def process_exception(self, request, exception):
        if request.url == "http://nobody.test/":
            return HtmlResponse(request.url, status=200, body=b"<h1>from nowhere</h1>", request=request)
        return None
