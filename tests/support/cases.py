"""Every spider that is run by Scrapy and by crawlog: how many items it gives, and its arguments."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Case(NamedTuple):
    """A spider.

    Attributes:
        items: That it gives by Scrapy.
        arguments: `-a`.
    """

    items: int
    arguments: Mapping[str, str] = MappingProxyType({})


QUOTES = {
    "authors": Case(50),
    "authors-kwargs": Case(100),
    "authors-meta": Case(100),
    "login": Case(91),
    "login-form": Case(92),
    "pages": Case(100),
    "pages-xpath": Case(100),
    "random": Case(6),
    "rules": Case(60),
    "script": Case(100),
    "script-click": Case(100),
    "script-delayed": Case(100),
    "scroll": Case(100),
    "search": Case(66),
    "search-hand": Case(14),
    "table": Case(100),
    "tags": Case(86),
    "whole": Case(88),
}
"""The quotes site: each kind of page that it has."""

DOCUMENTED = {
    "items": Case(20),
    "items-carried": Case(24),
    "links": Case(9),
    "links-values": Case(2),
    "loaders": Case(12),
    "loaders-nested": Case(1),
    "overview": Case(12),
    "pipelines": Case(5),
    "requests-callbacks": Case(4),
    "requests-cookies": Case(3),
    "requests-errback": Case(6),
    "requests-errback-kwargs": Case(1),
    "requests-fingerprint": Case(3),
    "requests-form": Case(1),
    "requests-json": Case(1),
    "requests-kwargs": Case(1),
    "requests-login": Case(1),
    "requests-response": Case(5),
    "spiders-argument": Case(1, {"category": "tools"}),
    "spiders-csv": Case(5),
    "spiders-log": Case(0),
    "spiders-rules": Case(7),
    "spiders-settings": Case(1),
    "spiders-several": Case(7),
    "spiders-sitemap": Case(4),
    "spiders-sitemap-filter": Case(4),
    "spiders-sitemap-others": Case(7),
    "spiders-sitemap-robots": Case(6),
    "spiders-sitemap-rules": Case(6),
    "spiders-start": Case(4),
    "spiders-start-item": Case(3),
    "spiders-start-post": Case(1),
    "spiders-user-agent": Case(1, {"user_agent": "of the command line"}),
    "spiders-xml": Case(5),
    "spiders-xml-namespace": Case(4),
    "tutorial-argument": Case(12, {"tag": "humor"}),
    "tutorial-author": Case(50),
    "tutorial-data": Case(20),
    "tutorial-files": Case(0),
    "tutorial-follow": Case(110),
    "tutorial-follow-all": Case(110),
    "tutorial-start-urls": Case(0),
    "tutorial-urljoin": Case(100),
}
"""The spiders of Scrapy's documentation, written anew for this site."""

IDIOMS = {
    "after-three": Case(7),
    "all-rules": Case(9),
    "arguments": Case(2, {"pages": "2", "tag": "love", "extra": "x=y"}),
    "callback-forms": Case(8),
    "chain": Case(7),
    "closing": Case(4),
    "cookies": Case(5),
    "depth": Case(4),
    "headers": Case(4),
    "jars": Case(3),
    "login-first": Case(1),
    "nobody": Case(6),
    "offsite": Case(3),
    "passed-on": Case(1),
    "priorities": Case(12),
    "redirects": Case(13),
    "replaced": Case(4),
    "retries": Case(5),
    "retry-by-callback": Case(4),
    "retry-subclass": Case(2),
    "robots": Case(2),
    "start-waits": Case(8),
    "statuses": Case(10),
    "two-callbacks": Case(4),
    "two-posts": Case(2),
    "values": Case(14),
}
"""What Scrapy's users write beside that."""

SHOP = {"middlewares": Case(9), "offers": Case(4)}
"""Pipelines and middlewares of a project."""

PROJECTS = {"quotes": QUOTES, "documented": DOCUMENTED, "idioms": IDIOMS, "shop": SHOP}
"""Folders of tests/projects/."""

BROWSER = {"click": Case(120), "login": Case(100), "scroll": Case(100)}
"""With scrapy-playwright; not in PROJECTS, whose spiders run without a browser."""

OWN = {
    "Pages": "pages",
    "PagesXPath": "pages-xpath",
    "Table": "table",
    "Tags": "tags",
    "Random": "random",
    "Authors": "authors",
    "AuthorsKwargs": "authors-kwargs",
    "AuthorsMeta": "authors-meta",
    "Scroll": "scroll",
    "Script": "script",
    "ScriptClick": "script-click",
    "Login": "login",
    "LoginForm": "login-form",
    "Search": "search",
}
"""Classes of crawlog's own spiders, each with the spider of Scrapy's that gives the same items."""
