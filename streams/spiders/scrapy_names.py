"""Scrapy's names that crawlog does not have, each with its replacement.

A name without effect would silently change a crawl: it would go faster than `download_delay`, for example. So
such names are refused when the spider is loaded, before the first request.
"""

from collections.abc import Iterator

# Attributes and methods of a spider.
OF_SPIDER = {
    "custom_settings": 'settings = {"politeness.delay_s": 2}, with the names that `crawlog settings` lists',
    "start_requests": "write it as `start`: a generator, or an async one",
    "from_crawler": "there is no crawler; write an __init__ with the spider's arguments, and settings = {…}",
    "update_settings": 'settings = {"politeness.delay_s": 2}, with the names that `crawlog settings` lists',
    "download_delay": 'settings = {"politeness.delay_s": 2}',
    "download_timeout": 'settings = {"fetch.timeout_s": 30}',
    "download_maxsize": 'settings = {"fetch.max_body_bytes": 8388608}',
    "max_concurrent_requests": 'settings = {"politeness.per_host": 1}, and "fetch.concurrency" for a whole worker',
    "user_agent": 'settings = {"fetch.user_agent": "…"}',
    "http_user": "fetch.logins, in the environment or in crawlog.toml",
    "http_pass": "fetch.logins, in the environment or in crawlog.toml",
}

# Those of them that are methods. A plain attribute of such a name is the user's own, and allowed.
METHODS = frozenset({"start_requests", "from_crawler", "update_settings"})

# Attributes and methods of a response.
OF_RESPONSE = {
    "css_first": "response.css('h1').get(), or response.tree.css_first('h1') for a node of selectolax",
    "ip_address": "addresses are not stored with a page",
    "certificate": "certificates are not stored with a page",
    "protocol": "the version of HTTP is not stored with a page",
}

# Parts of invalid selectors of `response.tree`, each with the replacement.
OF_SELECTOR = {
    "::text": "node.text() is a node's text",
    "::attr": "node.attributes['href'] is an attribute of a node",
    "//": "there is no XPath in response.tree, but response.xpath",
    ":contains": 'write :lexbor-contains("x")',
    ":first": "css_first gives the first node",
}

IMPORT = "crawlog has its own: `from crawlog import Request, Spider`"


def of_spider(spider: object) -> Iterator[str]:
    """A line for each of Scrapy's names on a spider, with the replacement."""
    for name, way in OF_SPIDER.items():
        if hasattr(spider, name) and (name not in METHODS or callable(getattr(spider, name))):
            yield f"{type(spider).__name__}.{name} does nothing here: {way}"


def of_selector(selector: str) -> str:
    """Why a selector is invalid, by its parts; a line of code with the selector will do."""
    ways = [way for part, way in OF_SELECTOR.items() if part in selector]
    return "; ".join(ways) or "it is not a CSS selector"
