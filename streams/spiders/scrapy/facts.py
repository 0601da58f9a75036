"""The job's settings of a Scrapy spider, in crawlog's names, and what is said at the start.

Scrapy's defaults count where the project sets nothing, but for robots.txt, the delay, the concurrency, the largest body
and certificates: there crawlog's own count, which the job says.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from scrapy.settings import BaseSettings, Settings
from scrapy.settings.default_settings import DOWNLOAD_TIMEOUT
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import load_object

from crawlog.streams.errors import Misconfigured
from crawlog.streams.requests import header_refusal, read_header
from crawlog.streams.url import MAX_URL_LENGTH

from . import feeds, with_playwright
from .downloading import _ROOM, components, of_the_project
from .settings_table import REDIS_SETTINGS, SETTINGS, is_of_scrapy_redis

NO_FILTER = "scrapy.dupefilters.BaseDupeFilter"

_DEFAULT = "default"

_TLS = {"TLSv1.2": "1.2", "TLSv1.3": "1.3"}  # Scrapy's names of the versions that crawlog speaks

JobSettings = dict[str, str | int | float | bool | list[str] | None]

# Of every Scrapy job: which requests are sent is decided beside the spider, by Scrapy's own classes.
ALWAYS: JobSettings = {
    "scope.kind": "any",
    "scope.include": [],
    "scope.exclude": [],
    "scope.max_redirects": 255,
    "scope.max_url_length": MAX_URL_LENGTH,
    "scope.max_pages_per_domain": None,
    "run.depth": None,
    "canonical.verbatim": True,
    "fetch.content_types": ["*/*"],
    "fetch.conditional": False,
    "robots.meta": "ignore",
    "sitemaps.follow": False,
    "links.nofollow": "follow",
    "traps.max_segments": 65_536,
    "traps.max_repeats": 65_536,
    "traps.max_params": 65_536,
    "traps.calendar": False,
    "traps.growing": False,
    "traps.facets": False,
    "traps.sessions": False,
    "traps.hosts": None,
}


def check(settings: BaseSettings, spider: object) -> None:
    """Refuse what would make the crawl another one.

    Raises: Misconfigured: a setting, or a component, that cannot work here; with the way out.
    """
    for component in _pipelines(settings):
        load_object(component)  # an error of it ends the start, not the pipelines later
    told = [*_refused(settings), *with_playwright.refused(settings), *_refused_middlewares(settings)]
    if told:
        raise Misconfigured(f"the Scrapy spider {getattr(spider, 'name', '')} cannot run:\n  " + "\n  ".join(told))


def _refused(settings: BaseSettings) -> Iterator[str]:
    for name, row in SETTINGS.items():
        if row.effect == "refused" and is_changed(settings, name) and not row.is_harmless(settings[name]):
            yield f"{name} = {settings[name]!r:.100}: {row.what}"
    kind = settings["DUPEFILTER_CLASS"]
    if _path(kind) not in {NO_FILTER, "scrapy.dupefilters.RFPDupeFilter"} and not is_of_scrapy_redis(kind):
        yield (
            f"DUPEFILTER_CLASS = {_path(kind)}: requests are filtered in the log: set REQUEST_FINGERPRINTER_CLASS to "
            f"say which are the same, or {NO_FILTER} to filter none"
        )


def _refused_middlewares(settings: BaseSettings) -> Iterator[str]:
    """Of those that a setting turns on: while it is off, the base raises NotConfigured and Scrapy leaves them out."""
    from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
    from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware

    ways = {
        RobotsTxtMiddleware: (
            "ROBOTSTXT_OBEY",
            "it needs Scrapy's engine. Set it to None there: crawlog obeys ROBOTSTXT_OBEY, unless Scrapy's own is None",
        ),
        HttpCacheMiddleware: (
            "HTTPCACHE_ENABLED",
            "crawl.pages has each page, for `crawlog replay`. Set it to None there, or HTTPCACHE_ENABLED to False",
        ),
    }
    for component in of_the_project(settings):
        kind = load_object(component) if isinstance(component, str) else component
        for base, (switch, way) in ways.items():
            if isinstance(kind, type) and issubclass(kind, base) and settings.getbool(switch):
                yield f"DOWNLOADER_MIDDLEWARES: {_path(kind)} is a {base.__name__}: {way}"


def _pipelines(settings: BaseSettings) -> list[Any]:
    return build_component_list(settings.get_component_priority_dict_with_base("ITEM_PIPELINES"))


def has_pipelines(settings: BaseSettings) -> bool:
    """Whether a process beside the sink is needed: for pipelines, or for extensions that hear of items."""
    return bool(_pipelines(settings)) or any(one is not None for one in settings.getdict("EXTENSIONS").values())


def filters(settings: BaseSettings) -> bool:
    return _path(settings["DUPEFILTER_CLASS"]) != NO_FILTER


def is_set(settings: BaseSettings, name: str) -> bool:
    """Whether the project, the spider or the command line sets it."""
    priority = settings.getpriority(name)
    return priority is not None and priority > 0


def is_changed(settings: BaseSettings, name: str) -> bool:
    """Whether it is set to another value than Scrapy's own."""
    return is_set(settings, name) and settings[name] != Settings()[name]


def job_settings(settings: BaseSettings, spider: object) -> JobSettings:
    """The settings of the job, by crawlog's names."""
    job, headers = dict(ALWAYS), default_headers(settings, spider)
    job |= {
        "fetch.attempts": (retries_of(settings) or 0) + 1,
        "fetch.retry_statuses": [str(int(code)) for code in settings.getlist("RETRY_HTTP_CODES")],
        "fetch.cookies": has_cookies(settings) or with_playwright.has_playwright(settings),  # browsers have them
        "fetch.user_agent": headers.user_agent,
        "fetch.headers": [f"{name}: {value}" for name, value in headers.of_job.items()],
        "frontier.order": _order(settings),
    }
    return job | timeouts(settings, spider) | _if_set(settings, spider)


def _order(settings: BaseSettings) -> str:
    queue = _path(settings["SCHEDULER_QUEUE_CLASS"] or settings["SCHEDULER_MEMORY_QUEUE"])
    return "fifo" if "Fifo" in queue or queue == "scrapy_redis.queue.SpiderQueue" else "lifo"


def retries_of(settings: BaseSettings) -> int | None:
    """Further attempts of a request; None if a middleware of the project retries, or none does."""
    has_own = f"{_ROOM}retry.RetryMiddleware" in map(_path, components(settings))
    return settings.getint("RETRY_TIMES") if has_own and settings.getbool("RETRY_ENABLED") else None


def has_cookies(settings: BaseSettings) -> bool:
    """Whether crawlog keeps cookies for the job."""
    has_own = f"{_ROOM}cookies.CookiesMiddleware" in map(_path, components(settings))
    return has_own and settings.getbool("COOKIES_ENABLED")


def reads_proxies(settings: BaseSettings) -> bool:
    """Whether Scrapy would take proxies from the environment."""
    has_own = f"{_ROOM}httpproxy.HttpProxyMiddleware" in map(_path, components(settings))
    return has_own and settings.getbool("HTTPPROXY_ENABLED")


class DefaultHeaders(NamedTuple):
    """DEFAULT_REQUEST_HEADERS and the user agent.

    Attributes:
        of_job: Headers of every request of the job.
        of_each: Headers that only a request itself may have; they go into each record.
        user_agent: DEFAULT_REQUEST_HEADERS counts before USER_AGENT, as in Scrapy.
        left_out: Names of those that crawlog writes by itself.
    """

    of_job: dict[str, str]
    of_each: dict[str, str]
    user_agent: str
    left_out: tuple[str, ...]


def default_headers(settings: BaseSettings, spider: object) -> DefaultHeaders:
    """The headers that requests have if they do not say otherwise."""
    given = settings.getdict("DEFAULT_REQUEST_HEADERS")
    if f"{_ROOM}defaultheaders.DefaultHeadersMiddleware" not in map(_path, components(settings)):
        given = {}
    headers = {str(name): str(value).strip() for name, value in given.items() if value is not None}
    agent = str(getattr(spider, "user_agent", None) or settings["USER_AGENT"] or "").strip()
    of_job, of_each, left_out = {}, {}, []
    for name, value in headers.items():
        lower = name.lower()
        if lower == "user-agent":
            agent = value
        elif lower == "authorization" or (lower == "cookie" and not has_cookies(settings)):
            of_each[name] = value
        elif _is_for_job(name, value):
            of_job[name] = value
        else:
            left_out.append(name)
    return DefaultHeaders(of_job, of_each, agent, tuple(left_out))


def _is_for_job(name: str, value: str) -> bool:
    try:
        read_header(f"{name}: {value}")
    except ValueError:
        return False
    return not header_refusal(name, value)


def timeouts(settings: BaseSettings, spider: object) -> JobSettings:
    """Scrapy has one time for all of a request.

    Connecting has it where the project chose it: with Scrapy's default, a mute host would take three minutes a try.
    """
    whole_s = timeout_of(settings, spider)
    given: JobSettings = {f"fetch.{name}_s": whole_s for name in ("timeout", "first_byte_timeout", "chunk_timeout")}
    if is_set(settings, "DOWNLOAD_TIMEOUT") or getattr(spider, "download_timeout", None):
        given["fetch.connect_timeout_s"] = whole_s
    return given


def timeout_of(settings: BaseSettings, spider: object) -> float:
    """DOWNLOAD_TIMEOUT, or the spider's `download_timeout`."""
    return float(getattr(spider, "download_timeout", 0) or settings.getfloat("DOWNLOAD_TIMEOUT") or DOWNLOAD_TIMEOUT)


def _if_set(settings: BaseSettings, spider: object) -> JobSettings:
    """Settings whose default is crawlog's, where the project sets them."""
    job: JobSettings = {}
    if is_set(settings, "ROBOTSTXT_OBEY") or obeys_none(settings):
        job["robots.obey"] = obeys_robots(settings)
    if token := _token(settings, spider):
        job["robots.token"] = token
    if is_set(settings, "DOWNLOAD_DELAY"):
        job["politeness.delay_s"] = settings.getfloat("DOWNLOAD_DELAY")
    if is_set(settings, "CONCURRENT_REQUESTS_PER_DOMAIN"):
        job["politeness.per_host"] = max(1, settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN"))
    if size := max_size(settings, spider):
        job["fetch.max_body_bytes"] = max(1024, size)
    if (most_ms := settings["PLAYWRIGHT_DEFAULT_NAVIGATION_TIMEOUT"]) and with_playwright.has_playwright(settings):
        job["render.timeout_s"] = float(most_ms) / 1000
    if pages := settings.getint("CLOSESPIDER_PAGECOUNT"):
        job["run.max_pages"] = pages
    return job | _tls(settings)


def _max_size(settings: BaseSettings, spider: object) -> int:
    """Bytes of a body, at most; 0 for no limit."""
    return int(getattr(spider, "download_maxsize", 0) or settings.getint("DOWNLOAD_MAXSIZE"))


def max_size(settings: BaseSettings, spider: object) -> int:
    """Bytes of a body, at most, where the project limits them; else 0."""
    is_own = is_set(settings, "DOWNLOAD_MAXSIZE") or hasattr(spider, "download_maxsize")
    return _max_size(settings, spider) if is_own else 0


def _tls(settings: BaseSettings) -> JobSettings:
    job: JobSettings = {}
    if is_set(settings, "DOWNLOAD_VERIFY_CERTIFICATES"):
        job["network.verify_tls"] = settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES")
    if (ciphers := settings["DOWNLOADER_CLIENT_TLS_CIPHERS"]) and ciphers != "DEFAULT":
        job["network.tls"] = ciphers
    if settings["DOWNLOAD_TLS_MIN_VERSION"] in _TLS:
        job["network.min_tls"] = _TLS[settings["DOWNLOAD_TLS_MIN_VERSION"]]
    return job


def obeys_robots(settings: BaseSettings) -> bool:
    """Whether robots.txt is obeyed: it is where the project does not say otherwise."""
    if obeys_none(settings):
        return False
    return settings.getbool("ROBOTSTXT_OBEY") if is_set(settings, "ROBOTSTXT_OBEY") else True


def obeys_none(settings: BaseSettings) -> bool:
    """Whether the project turned the robots middleware off by None."""
    return f"{_ROOM}robotstxt.RobotsTxtMiddleware" not in map(_path, components(settings))


def _token(settings: BaseSettings, spider: object) -> str:
    """The product token of robots.txt: the first one of the user agent that the project sets; else crawlog's."""
    is_own = is_set(settings, "USER_AGENT") or hasattr(spider, "user_agent")
    agent = settings["ROBOTSTXT_USER_AGENT"] or (getattr(spider, "user_agent", None) or settings["USER_AGENT"])
    if not (is_own or settings["ROBOTSTXT_USER_AGENT"]):
        return ""
    found = re.match(r"[A-Za-z_-]+", str(agent or ""))
    return found[0] if found else ""


def defaults(settings: BaseSettings) -> dict[str, str]:
    """Where crawlog's defaults count, by crawlog's setting; the operator may have set that."""
    ours = {
        "ROBOTSTXT_OBEY": ("robots.obey", "robots.txt is obeyed"),
        "DOWNLOAD_DELAY": ("politeness.delay_s", "hosts rest one second between requests"),
        "CONCURRENT_REQUESTS_PER_DOMAIN": ("politeness.per_host", "one request at a time goes to a host"),
        "DOWNLOAD_MAXSIZE": ("fetch.max_body_bytes", "bodies have at most 8 MiB"),
        "DOWNLOAD_VERIFY_CERTIFICATES": ("network.verify_tls", "certificates are verified"),
    }
    left = {name: told for name, told in ours.items() if not is_set(settings, name)}
    return {own: f"{what} ({own}), {name} sets it" for name, (own, what) in left.items()}


def notes(settings: BaseSettings, spider: object) -> Iterator[str]:
    """Lines that are said at the start: what has no effect."""
    if not _max_size(settings, spider):
        yield "DOWNLOAD_MAXSIZE = 0: bodies are never without a limit: fetch.max_body_bytes counts (8 MiB by default)"
    if (version := settings["DOWNLOAD_TLS_MIN_VERSION"]) and version not in _TLS:
        yield f"DOWNLOAD_TLS_MIN_VERSION = {version!r:.100}: no such version is spoken: network.min_tls is 1.2 or 1.3"
    for name in ("SCHEDULER", "DUPEFILTER_CLASS"):
        if is_of_scrapy_redis(settings[name]):
            yield f"{name} = {_path(settings[name])}: its work is done in the log, not in Redis"
    for name, row in (SETTINGS | REDIS_SETTINGS).items():
        if row.is_said and is_changed(settings, name) and not row.is_harmless(settings[name]):
            yield f"{name}: {row.what}"
    yield from feeds.notes(settings)
    if left_out := default_headers(settings, spider).left_out:
        yield f"DEFAULT_REQUEST_HEADERS: crawlog writes {', '.join(left_out)} by itself"
    yield from _of_middlewares(settings)
    yield from _of_spider(spider)


def _of_middlewares(settings: BaseSettings) -> Iterator[str]:
    own = of_the_project(settings)
    if own and retries_of(settings) is not None:
        yield (
            "downloader middlewares of the project see the last attempt of a request: crawlog retries by itself; "
            "to see each, set scrapy.downloadermiddlewares.retry.RetryMiddleware to None and list a subclass"
        )
    if f"{_ROOM}httpcompression.HttpCompressionMiddleware" not in map(_path, components(settings)):
        yield "HttpCompressionMiddleware is off: bodies are asked for compressed and arrive decoded in any case"
    if f"{_ROOM}useragent.UserAgentMiddleware" not in map(_path, components(settings)):
        yield "UserAgentMiddleware is off: requests without a User-Agent are sent with fetch.user_agent"
    from scrapy.downloadermiddlewares.cookies import CookiesMiddleware

    for component in own:
        kind = load_object(component) if isinstance(component, str) else component
        if isinstance(kind, type) and issubclass(kind, CookiesMiddleware):
            yield f"{_path(kind)}: each worker has jars of its own, lost when its process ends"


def _of_spider(spider: object) -> Iterator[str]:
    if uses_start_requests(type(spider)):
        yield "start_requests() is called, as Scrapy before 2.13 did; Scrapy 2.19 calls start() only"


def uses_start_requests(kind: type) -> bool:
    """Whether `start_requests` gives the first requests: it is defined nearer to the class than `start`."""
    for one in kind.__mro__:
        if "start" in vars(one):
            return False
        if "start_requests" in vars(one):
            return one.__module__ != "scrapy_redis.spiders"  # it pops the first batch, as an idle job does
    return False


def _path(component: Any) -> str:
    return component if isinstance(component, str) else f"{component.__module__}.{component.__qualname__}"
