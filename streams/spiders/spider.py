"""`Spider`, the base class of spiders that users write, and `Rule`: which links are followed, by which method.

A link belongs to the first rule that takes it. A page that came by a rule is searched by the rules again, unless its
rule has a callback and does not say `follow=True`.
"""

import logging  # noqa: TID251  # the user's own messages; crawlog writes none here
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from crawlog.streams.spans import span_s

from .response import Response
from .spider_request import Callback, Request

Patterns = str | re.Pattern[str] | Iterable[str | re.Pattern[str]]

Method = TypeVar("Method", bound=Callable[..., Any])

OF_RULE: Final = "rule"  # Key in `meta` of the number of the rule that took a link; as in Scrapy

# Extensions of files that are no pages.
_FILES: Final = frozenset(
    {"7z", "bz2", "rar", "tar", "tar.gz", "xz", "zip", "bmp", "gif", "jpg", "jpeg", "png", "tif", "tiff", "svg",
     "ico", "webp", "mp3", "wma", "ogg", "wav", "aac", "mid", "aiff", "3gp", "avi", "mov", "mp4", "mpg", "qt", "swf",
     "wmv", "m4a", "m4v", "flv", "webm", "xls", "xlsm", "xlsx", "ppt", "pptx", "doc", "docx", "odt", "ods", "odg",
     "odp", "css", "pdf", "exe", "bin", "rss", "dmg", "iso", "apk", "jar", "js", "msi"}
)  # fmt: skip


class Rule:
    """Links to follow.

    Args:
        allow: Expressions; the absolute URL must match one, anywhere. None given: all URLs do.
        deny: Expressions; a URL that matches one is left out.
        allow_domains, deny_domains: Hosts, with their sub-domains.
        restrict_css, restrict_xpath: Only links within what these selectors match.
        callback: A method of the spider, by its name. Without one the page is only searched for links.
        follow: Whether these pages are searched by the rules again; by default if there is no callback.
        cb_kwargs: Further arguments of the callback.
        priority: Within a host, higher is sent first.
        deny_extensions: File extensions that are left out; by default those of images, archives and the like.
    """

    def __init__(  # noqa: PLR0913  # as in Scrapy, whose rule has a link extractor with these
        self,
        allow: Patterns = (),
        deny: Patterns = (),
        *,
        allow_domains: str | Iterable[str] = (),
        deny_domains: str | Iterable[str] = (),
        restrict_css: str | Iterable[str] = (),
        restrict_xpath: str | Iterable[str] = (),
        callback: Callback | None = None,
        follow: bool | None = None,
        cb_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        deny_extensions: Iterable[str] = _FILES,
    ) -> None:
        self.callback = _name_of(callback)
        self.follow = callback is None if follow is None else follow
        self.cb_kwargs = dict(cb_kwargs or {})
        self.priority = priority
        self._allow, self._deny = _compiled(allow), _compiled(deny)
        self._allow_domains, self._deny_domains = _several(allow_domains), _several(deny_domains)
        self._css, self._xpath = _several(restrict_css), _several(restrict_xpath)
        self._extensions = frozenset(one.lower().lstrip(".") for one in deny_extensions)

    def urls(self, response: Response) -> list[str]:
        """The absolute URLs on a page that this rule takes, in order."""
        urls = (response.urljoin(href) for href in self._hrefs(response))
        return [url for url in dict.fromkeys(urls) if self.takes(url)]

    def takes(self, url: str) -> bool:
        """Whether the rule takes a URL, wherever it stands."""
        if not url.startswith(("http://", "https://")):
            return False
        if self._allow and not any(one.search(url) for one in self._allow):
            return False
        if any(one.search(url) for one in self._deny):
            return False
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:  # no URL, such as `http://[bad`
            return False
        if self._allow_domains and not within(host, self._allow_domains):
            return False
        return not within(host, self._deny_domains) and not self._is_file(parts.path)

    def _is_file(self, path: str) -> bool:
        name = path.rpartition("/")[2].lower()
        return any(part in self._extensions for part in (name.partition(".")[2], name.rpartition(".")[2])) and (
            "." in name
        )

    def _hrefs(self, response: Response) -> Iterator[str]:
        if not self._css and not self._xpath:
            for node in response.tree.css("a[href], area[href]"):
                yield (node.attributes.get("href") or "").strip()
            return
        places = [place for query in self._css for place in response.css(query)]
        places += [place for query in self._xpath for place in response.xpath(query)]
        for place in places:
            inside = place.xpath("descendant-or-self::a/@href | descendant-or-self::area/@href")
            yield from (href.strip() for href in inside.getall())


class HasRules(Protocol):
    """A spider with rules."""

    rules: Sequence[Rule]


def rule_requests(spider: HasRules, response: Response) -> Iterator[Request]:
    """The requests of a page's rules."""
    taken: set[str] = set()
    for number, rule in enumerate(spider.rules):
        for url in rule.urls(response):
            if url in taken:
                continue
            taken.add(url)
            meta = {OF_RULE: number} if rule.callback and rule.follow else {}
            yield Request(url, rule.callback or None, meta=meta, cb_kwargs=rule.cb_kwargs, priority=rule.priority)


def is_searched(spider: HasRules, request: Request | None) -> bool:
    """Whether the rules take links from a page: no callback got it, or its own rule has `follow`."""
    if not spider.rules:
        return False
    if request is None or request.callback is None:
        return True
    number = request.meta.get(OF_RULE)
    return isinstance(number, int) and 0 <= number < len(spider.rules) and spider.rules[number].follow


def within(host: str, domains: Iterable[str]) -> bool:
    """Whether a host is one of these or a sub-domain of one."""
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def _name_of(callback: Callback | None) -> str:
    """The name of a callback: rules stand in the class, where its methods are plain functions."""
    if callback is None or isinstance(callback, str):
        return callback or ""
    name = getattr(callback, "__name__", "")
    if not name.isidentifier():
        raise TypeError(f"callback = {callback!r:.200}: a rule names a method of the spider")
    return str(name)


def _several(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _compiled(given: Patterns) -> tuple[re.Pattern[str], ...]:
    several = (given,) if isinstance(given, str | re.Pattern) else given
    return tuple(re.compile(one) if isinstance(one, str) else one for one in several)


EVERY: Final = "every_s"  # Attribute of a method that `every` was put on: seconds


def every(
    span: str = "", *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
) -> Callable[[Method], Method]:
    """Has the spider's `start` begin again so long after it ended, in the same job, which is `watching` meanwhile.

    A URL that the job knows falls away, whether or not its `age` has come; requests with `dont_filter` are sent.

    Args:
        span: Such as `6h` or `1d12h`.

    Raises: ValueError: it is less than a second, or no length of time. TypeError: it is used without brackets.
    """
    if not isinstance(span, str):
        raise TypeError("@every needs a length of time: @every(hours=6) or @every('6h')")
    length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    length += span_s(span) if span else 0
    if length < 1:
        raise ValueError("@every needs a second or more: @every(hours=6)")

    def mark(method: Method) -> Method:
        setattr(method, EVERY, length)
        return method

    return mark


class Spider:
    """Extracts items and links from pages; write a subclass with a `parse`.

    `crawlog run --spider FILE.py[:Class]` makes one object of the class in each worker. A page goes to the callback of
    its request, and to `parse` where there is none. Pages go to several workers, in no fixed order, and some come twice
    after a kill. So the attributes of one object never describe the whole crawl.

    Arguments of the command line (`-a section=books`) come to `__init__` by their names, as text. A spider without
    `__init__` has them as attributes.

    Attributes:
        name: In each item record; by default the class's name.
        version: In each item record; by default a short hash of the file.
        start_urls: Seeds, if the command line names none.
        allowed_domains: Only URLs of these hosts and their sub-domains are taken; by default what `scope` says.
        age: How long after it was fetched a URL is fetched again, such as `7d`, or seconds: the setting `recrawl.age`.
            An attribute of the class alone; empty for never.
        settings: By dotted name. They override environment and file; `-s` and flags override them.
        follow_links: Whether all links of a page are followed, beside the requests that a callback yields.
        handle_httpstatus_list: Further status codes, beside 2xx, whose pages go to the callback.
        rules: Which links are followed, and which method gets their pages; `parse` may then be left out.
        pipelines: Classes that items pass through before they are rows.
    """

    name: str = ""
    version: str = ""
    start_urls: Sequence[str] = ()
    allowed_domains: Collection[str] = ()
    age: str | float = ""
    settings: Mapping[str, object] = {}
    follow_links: bool = False
    handle_httpstatus_list: Sequence[int] = ()
    pipelines: Sequence[type] = ()
    rules: Sequence[Rule] = ()

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        if name is not None:
            self.name = name
        self.__dict__.update(arguments)

    def start(self) -> Any:
        """Yield the first requests; may be `async` and may be endless. By default those of `start_urls`."""
        return (Request(url) for url in self.start_urls)

    def parse(self, response: Response) -> Any:
        """Yield items and requests, in any order. They are sent together after the last one, or not at all."""
        raise NotImplementedError(f"{type(self).__name__} has no parse")

    @property
    def logger(self) -> logging.Logger:
        """A logger with the spider's name."""
        return logging.getLogger(self.name or type(self).__name__)
