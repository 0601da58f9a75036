"""The spiders of the project `quotes`, with crawlog's own class: the same names, the same items."""

import json

from crawlog import Request, Spider, actions


def quotes(response):
    for quote in response.css("div.quote"):
        yield {
            "text": quote.css(".text::text").get(),
            "author": quote.css(".author::text").get(),
            "tags": quote.css(".tags .tag::text").getall(),
        }


def form_of(response):
    """The fields of the page's form as a browser would send them."""
    fields = {one.attrib["name"]: one.attrib.get("value", "") for one in response.css("form input[name]")}
    for select in response.css("form select[name]"):
        options = select.xpath(".//option[@selected]") or select.xpath(".//option[1]")
        fields[select.attrib["name"]] = options.attrib.get("value") or options.xpath("normalize-space()").get()
    return fields


class Pages(Spider):
    name = "pages"
    start_urls = ["http://quotes.test/"]
    allowed_domains = ["quotes.test"]

    def parse(self, response):
        yield from quotes(response)
        yield from response.follow_all(css="li.next a")


class PagesXPath(Spider):
    name = "pages-xpath"

    async def start(self):
        yield Request("http://quotes.test/")

    def parse(self, response):
        for quote in response.xpath('//div[@class="quote"]'):
            yield {
                "text": quote.xpath('./span[@class="text"]/text()').get(),
                "author": quote.xpath('.//small[@class="author"]/text()').get(),
                "tags": quote.xpath('.//div[@class="tags"]/a[@class="tag"]/text()').getall(),
            }
        if href := response.xpath('//li[@class="next"]/a/@href').get():
            yield Request(response.urljoin(href), self.parse)


class Table(Spider):
    name = "table"
    start_urls = ["http://quotes.test/tableful/"]

    def parse(self, response):
        for row in response.xpath('//tr[./td[contains(., "Author: ")]]'):
            text, author = row.xpath("normalize-space(./td)").re(r"(.+) Author: (.+)")
            yield {"text": text, "author": author, "tags": row.xpath("./following-sibling::tr[1]//a/text()").getall()}
        yield from response.follow_all(xpath='//a[contains(., "Next")]')


class Tags(Spider):
    name = "tags"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        for link in response.css(".tag-item a"):
            about = {"tag": link.css("::text").get(), "px": link.re_first(r"font-size: (\d+)px")}
            yield response.follow(link, self.parse_tag, cb_kwargs={"about": about, "page": 1})

    def parse_tag(self, response, about, page):
        for text in response.css(".quote .text::text").getall():
            yield {"text": text, "page": page, **about}
        yield from response.follow_all(
            css="li.next a", callback=self.parse_tag, cb_kwargs={"about": about, "page": page + 1}
        )


class Random(Spider):
    name = "random"

    async def start(self):
        for number in range(6):
            yield Request("http://quotes.test/random", dont_filter=True, cb_kwargs={"number": number})

    def parse(self, response, number):
        yield {"number": number, "quotes": len(response.css(".quote"))}


class Authors(Spider):
    name = "authors"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        yield from response.follow_all(css=".author + a", callback=self.parse_author)
        yield from response.follow_all(css="li.next a")

    def parse_author(self, response):
        yield {
            "name": response.css("h3.author-title::text").get("").strip(),
            "birthdate": response.css(".author-born-date::text").get("").strip(),
            "bio": response.css(".author-description::text").get("").strip(),
        }


class AuthorsKwargs(Spider):
    name = "authors-kwargs"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        for quote in response.css("div.quote"):
            carried = {"text": quote.css(".text::text").get(), "tags": quote.css(".tag::text").getall()}
            yield response.follow(quote.css("a")[0], self.parse_author, cb_kwargs={"quote": carried}, dont_filter=True)
        yield from response.follow_all(css="li.next a")

    def parse_author(self, response, quote):
        yield quote | {"born": response.css(".author-born-date::text").get()}


class AuthorsMeta(AuthorsKwargs):
    name = "authors-meta"

    def parse(self, response):
        for quote in response.css("div.quote"):
            carried = {"text": quote.css(".text::text").get(), "at": (1, 2)}
            yield response.follow(quote.css("a")[0], self.parse_author, meta={"quote": carried}, dont_filter=True)
        yield from response.follow_all(css="li.next a")

    def parse_author(self, response):
        quote = response.meta["quote"]
        yield {"text": quote["text"], "at": quote["at"], "born": response.css(".author-born-date::text").get()}


class Scroll(Spider):
    name = "scroll"
    start_urls = ["http://quotes.test/api/quotes?page=1"]
    settings = {"fetch.content_types": ["application/json"]}

    def parse(self, response):
        data = response.json()
        for quote in data["quotes"]:
            yield {"text": quote["text"], "author": quote["author"], "tags": quote["tags"]}
        if data["has_next"]:
            yield response.follow(f"?page={data['page'] + 1}")


class Script(Spider):
    """Reads the script, as Scrapy's spider does."""

    name = "script"
    start_urls = ["http://quotes.test/js/"]

    def parse(self, response):
        script = response.xpath('//script[contains(., "var data =")]/text()').get()
        for quote in json.loads(script[script.index("[") : script.index("];") + 1]):
            yield {"text": quote["text"], "author": quote["author"]["name"], "tags": quote["tags"]}
        yield from response.follow_all(css="li.next a")


class ScriptClick(Script):
    name = "script-click"
    start_urls = ["http://quotes.test/js-onclick/"]

    def parse(self, response):
        yield from super().parse(response)
        if response.css("li.next"):
            yield response.follow(response.text.split('window.location.href = "')[1].split('"')[0])


class Rendered(Spider):
    """A browser runs the script."""

    name = "rendered"

    async def start(self):
        yield Request("http://quotes.test/js/page/8/", render=True)

    def parse(self, response):
        yield from quotes(response)
        yield from response.follow_all(css="li.next a", render=True)


class RenderedDelayed(Rendered):
    name = "rendered-delayed"

    async def start(self):
        yield Request("http://quotes.test/js-delayed/?delay=300", render=True)

    def parse(self, response):
        yield from quotes(response)


class Scrolled(Rendered):
    """The page that grows as it is scrolled: one request for all of it."""

    name = "scrolled"

    async def start(self):
        done = [actions.scroll(until=".quote:nth-child(100)"), actions.evaluate("document.title")]
        yield Request("http://quotes.test/scroll", actions=done)

    def parse(self, response):
        assert response.results == [None, "Quotes to Scrape"]
        yield from quotes(response)


class Login(Spider):
    """The token by hand. Cookies are off by default."""

    name = "login"
    settings = {"fetch.cookies": True}
    start_urls = ["http://quotes.test/login"]

    def parse(self, response):
        token = response.css('input[name="csrf_token"]::attr(value)').get()
        form = {"csrf_token": token, "username": "ann", "password": "any"}
        yield Request("http://quotes.test/login", self.logged_in, form=form)

    def logged_in(self, response):
        yield {"url": response.url, "logged in": bool(response.css('a[href="/logout"]'))}
        yield response.follow("/page/2/", self.parse_page)

    def parse_page(self, response):
        for link in response.xpath('//a[contains(., "Goodreads")]/@href').getall():
            yield {"goodreads": link}
        yield from response.follow_all(css="li.next a", callback=self.parse_page)


class LoginForm(Login):
    """The fields of the form."""

    name = "login-form"
    start_urls = ["http://quotes.test/"]

    def parse(self, response):
        yield {"before": bool(response.css('a[href="/logout"]'))}
        yield response.follow("/login", self.parse_login)

    def parse_login(self, response):
        action = response.css("form::attr(action)").get()
        yield response.follow(action, self.logged_in, form=form_of(response) | {"username": "bob"})


class Search(Spider):
    name = "search"
    start_urls = ["http://quotes.test/search.aspx"]

    def parse(self, response):
        for author in response.css("select#author > option ::attr(value)").getall()[:5]:
            yield response.follow("/filter.aspx", self.parse_author, form=form_of(response) | {"author": author})

    def parse_author(self, response):
        for tag in response.css("select#tag > option ::attr(value)").getall():
            yield response.follow("/filter.aspx", self.parse_results, form=form_of(response) | {"tag": tag})

    def parse_results(self, response):
        for quote in response.css("div.quote"):
            yield {
                "quote": quote.css("span.content::text").get(),
                "author": quote.css("span.author::text").get(),
                "tag": quote.css("span.tag::text").get(),
            }
