import json

import scrapy


class ScrollSpider(scrapy.Spider):
    """The pages that scroll without end have a JSON API behind them."""

    name = "scroll"
    api = "http://quotes.test/api/quotes?page={}"
    start_urls = [api.format(1)]

    def parse(self, response):
        data = response.json()
        for quote in data["quotes"]:
            yield {"text": quote["text"], "author": quote["author"], "tags": quote["tags"]}
        if data["has_next"]:
            yield scrapy.Request(self.api.format(data["page"] + 1))


class ScriptSpider(scrapy.Spider):
    """The quotes stand in a script of the page."""

    name = "script"
    start_urls = ["http://quotes.test/js/"]

    def parse(self, response):
        script = response.xpath('//script[contains(., "var data =")]/text()').get()
        for quote in json.loads(script[script.index("[") : script.index("];") + 1]):
            yield {"text": quote["text"], "author": quote["author"]["name"], "tags": quote["tags"]}
        yield from response.follow_all(css="li.next a", callback=self.parse)


class ScriptClickSpider(ScriptSpider):
    """The button has no address either: the script has it."""

    name = "script-click"
    start_urls = ["http://quotes.test/js-onclick/"]

    def parse(self, response):
        yield from super().parse(response)
        if response.css("li.next"):
            yield response.follow(response.text.split('window.location.href = "')[1].split('"')[0])


class ScriptDelayedSpider(ScriptSpider):
    """The page waits before it shows them."""

    name = "script-delayed"
    start_urls = ["http://quotes.test/js-delayed/?delay=300"]
