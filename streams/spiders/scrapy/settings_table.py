"""What becomes of each setting of Scrapy: mapped, kept, or refused with the reason. Tests compare with Scrapy's own.

mapped: it sets something of crawlog's. kept: the project's code and Scrapy's classes read it, or it changes no item.
refused: without it the crawl would be another one, so the spider is not started.
"""

import operator
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Literal, NamedTuple

import msgspec
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from crawlog.streams.printable import HIDDEN

from ..exchange import SettingOrigin, SpiderFacts
from .with_playwright import is_playwright

Effect = Literal["mapped", "kept", "refused"]


class SettingRow(NamedTuple):
    """What becomes of a setting.

    Attributes:
        what: The setting of crawlog, who reads it, or why it is refused and the way out.
        is_said: Of a kept one: whether a line is said at the start if the project sets it.
        is_harmless: Of a refused or a said one: whether a value changes nothing.
    """

    effect: Effect
    what: str
    is_said: bool = False
    is_harmless: Callable[[Any], bool] = lambda value: not value


def _mapped(what: str) -> SettingRow:
    return SettingRow("mapped", what)


def _kept(what: str) -> SettingRow:
    return SettingRow("kept", what)


def _said(what: str, is_harmless: Callable[[Any], bool] = lambda _: False) -> SettingRow:
    return SettingRow("kept", what, is_said=True, is_harmless=is_harmless)


def _refused(what: str, is_harmless: Callable[[Any], bool] = lambda value: not value) -> SettingRow:
    return SettingRow("refused", what, is_harmless=is_harmless)


_CODE = "read by the project's own code"
_HERE = "used by Scrapy's own class, which runs beside the spider"
_EXTENSION = "Scrapy's extension needs the engine and does not run here"
_STORES = "read by the pipelines' process"
_HTTP_ONLY = "for other schemes than http and https, which are not fetched"
_ROWS = "rows go to crawlog's outputs: FEEDS, or -o of the command"
_LOG = "the log of crawlog's processes"
_QUEUES = "the frontier is crawlog's own, kept in the log"
_CACHE = "there is no HTTP cache: crawl.pages has each page, and `crawlog replay` parses again without fetching"
_THROTTLE = "hosts rest by politeness.delay_s, longer when they are slow to answer or turn requests away"
_CONNECTIONS = "connections are those of crawlog's client"
_OWN_BROWSER = "each worker has a Chromium without a network, whose requests pass the egress guard: remove the setting"
_PAGES = "render.pages of a worker says how many pages it has in the browser at a time"


def is_of_scrapy_redis(component: Any) -> bool:
    """Whether a setting names a class of scrapy-redis, or of a library that extends it."""
    module = component if isinstance(component, str) else getattr(component, "__module__", "")
    return module.startswith("scrapy_redis")


# By name: every setting of the installed Scrapy and of scrapy-playwright, also those without a default.
SETTINGS: dict[str, SettingRow] = {
    "ADDONS": _kept("add-ons are loaded, and may change settings"),
    "ASYNCIO_EVENT_LOOP": _said("the event loop is that of crawlog's process"),
    "AUTOTHROTTLE_DEBUG": _kept(_THROTTLE),
    "AUTOTHROTTLE_ENABLED": _said(_THROTTLE),
    "AUTOTHROTTLE_MAX_DELAY": _kept(_THROTTLE),
    "AUTOTHROTTLE_START_DELAY": _kept(_THROTTLE),
    "AUTOTHROTTLE_TARGET_CONCURRENCY": _kept(_THROTTLE),
    "AWS_ACCESS_KEY_ID": _kept(_STORES),
    "AWS_ENDPOINT_URL": _kept(_STORES),
    "AWS_MAX_POOL_CONNECTIONS": _kept(_STORES),
    "AWS_REGION_NAME": _kept(_STORES),
    "AWS_SECRET_ACCESS_KEY": _kept(_STORES),
    "AWS_SESSION_TOKEN": _kept(_STORES),
    "AWS_USE_SSL": _kept(_STORES),
    "AWS_VERIFY": _kept(_STORES),
    "BOT_NAME": _kept(_CODE),
    "CLOSESPIDER_ERRORCOUNT": _mapped("closes the job; each parse process and `start` count their own"),
    "CLOSESPIDER_ITEMCOUNT": _mapped(
        "closes the job; each parse process and `start` count their own, before pipelines"
    ),
    "CLOSESPIDER_PAGECOUNT": _mapped("run.max_pages"),
    "CLOSESPIDER_PAGECOUNT_NO_ITEM": _mapped("closes the job; each parse process counts its own"),
    "CLOSESPIDER_TIMEOUT": _mapped("closes the job; each parse process and `start` count from their beginning"),
    "CLOSESPIDER_TIMEOUT_NO_ITEM": _mapped("closes the job; each parse process counts from its start"),
    "COMMANDS_MODULE": _kept("commands are `crawlog`'s"),
    "COMPRESSION_ENABLED": _said("bodies are asked for compressed and arrive decoded in any case"),
    "CONCURRENT_ITEMS": _kept("items of a page are taken one after the other"),
    "CONCURRENT_REQUESTS": _said("requests at once are limited by politeness.per_host and fetch.concurrency"),
    "CONCURRENT_REQUESTS_PER_DOMAIN": _mapped("politeness.per_host"),
    "CONCURRENT_REQUESTS_PER_IP": _said("addresses are limited by politeness.per_ip and politeness.ip_rate, by worker"),
    "COOKIES_DEBUG": _kept("nothing is written"),
    "COOKIES_ENABLED": _mapped("fetch.cookies"),
    "CRAWLSPIDER_FOLLOW_LINKS": _kept(_HERE),
    "DEFAULT_DROPITEM_LOG_LEVEL": _kept(_STORES),
    "DEFAULT_ITEM_CLASS": _kept(_CODE),
    "DEFAULT_REQUEST_HEADERS": _mapped("fetch.headers"),
    "DEPTH_LIMIT": _kept(_HERE),
    "DEPTH_PRIORITY": _kept(_HERE),
    "DEPTH_STATS_VERBOSE": _kept(_HERE),
    "DNSCACHE_ENABLED": _kept("names are remembered for fetch.dns_ttl_s"),
    "DNSCACHE_SIZE": _kept("names are remembered by fetch.dns_cache_hosts"),
    "DNS_RESOLVER": _kept("names are resolved by crawlog's client"),
    "DNS_TIMEOUT": _kept("within fetch.timeout_s"),
    "DOWNLOADER": _refused("crawlog fetches by itself; remove the setting"),
    "DOWNLOADER_CLIENTCONTEXTFACTORY": _refused("TLS is set by network.*; remove the setting"),
    "DOWNLOADER_CLIENT_TLS_CIPHERS": _mapped("network.tls; ciphers without a certificate are left out"),
    "DOWNLOADER_CLIENT_TLS_METHOD": _said(_CONNECTIONS + "; TLS is set by network.*"),
    "DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING": _kept("nothing is written"),
    "DOWNLOADER_MIDDLEWARES": _mapped("those of the project run beside the spider; None turns crawlog's own part off"),
    "DOWNLOADER_MIDDLEWARES_BASE": _mapped("as DOWNLOADER_MIDDLEWARES"),
    "DOWNLOADER_STATS": _kept(_HERE),
    "DOWNLOAD_BIND_ADDRESS": _refused("a worker sends from its machine's address: run one there, or set exits.proxies"),
    "DOWNLOAD_DELAY": _mapped("politeness.delay_s"),
    "DOWNLOAD_DELAY_JITTER": _kept("a delay is the least rest; it is not drawn by chance"),
    "DOWNLOAD_FAIL_ON_DATALOSS": _refused("a body that breaks off is an error here", bool),
    "DOWNLOAD_HANDLERS": _refused(
        "crawlog fetches by itself, and renders pages for scrapy-playwright's handler; remove others: "
        "-s render.mode=always or render.include has pages rendered, too",
        lambda value: all(map(is_playwright, filter(None, value.values()))),
    ),
    "DOWNLOAD_HANDLERS_BASE": _kept("crawlog fetches http and https by itself"),
    "DOWNLOAD_MAXSIZE": _mapped("fetch.max_body_bytes, within kafka.max_record_bytes; 0 does not lift the limit"),
    "DOWNLOAD_SLOTS": _said("requests are limited by host, alike for all hosts of a job: politeness.*"),
    "DOWNLOAD_TIMEOUT": _mapped("fetch.timeout_s"),
    "DOWNLOAD_TLS_MAX_VERSION": _said(_CONNECTIONS + "; TLS is set by network.*"),
    "DOWNLOAD_TLS_MIN_VERSION": _mapped("network.min_tls; older versions than 1.2 are not spoken"),
    "DOWNLOAD_VERIFY_CERTIFICATES": _mapped("network.verify_tls"),
    "DOWNLOAD_WARNSIZE": _kept("no warning is written"),
    "DUPEFILTER_CLASS": _mapped("requests are filtered by Scrapy's fingerprint, in the log; BaseDupeFilter: by none"),
    "DUPEFILTER_DEBUG": _kept("`crawlog why URL` says what was filtered"),
    "EDITOR": _kept("commands are `crawlog`'s"),
    "EXTENSIONS": _kept(
        "those of the project run beside the spider; of Scrapy's own, CoreStats and LogCount: others need the engine"
    ),
    "EXTENSIONS_BASE": _kept("as EXTENSIONS"),
    "FEEDS": _mapped("outputs of the job, where the command has no -o"),
    "FEED_EXPORTERS": _said(_ROWS),
    "FEED_EXPORTERS_BASE": _kept(_ROWS),
    "FEED_EXPORT_BATCH_ITEM_COUNT": _said("an output is one file", lambda value: not value),
    "FEED_EXPORT_ENCODING": _mapped("encoding of text formats"),
    "FEED_EXPORT_FIELDS": _mapped("fields of the rows"),
    "FEED_EXPORT_INDENT": _mapped("indent of `.json`"),
    "FEED_FORMAT": _said(_ROWS),
    "FEED_STORAGES": _said(_ROWS),
    "FEED_STORAGES_BASE": _kept(_ROWS),
    "FEED_STORAGE_FTP_ACTIVE": _kept(_ROWS),
    "FEED_STORAGE_GCS_ACL": _kept(_ROWS),
    "FEED_STORAGE_S3_ACL": _kept(_ROWS),
    "FEED_STORE_EMPTY": _said("an output without rows is written, too", bool),
    "FEED_TEMPDIR": _kept(_ROWS),
    "FEED_URI": _said(_ROWS),
    "FEED_URI_PARAMS": _kept("called for the URIs of FEEDS"),
    "FILES_STORE": _kept(_STORES),
    "FILES_STORE_GCS_ACL": _kept(_STORES),
    "FILES_STORE_S3_ACL": _kept(_STORES),
    "FORCE_CRAWLER_PROCESS": _kept("processes are crawlog's"),
    "FTP_PASSIVE_MODE": _kept(_HTTP_ONLY),
    "FTP_PASSWORD": _kept(_HTTP_ONLY),
    "FTP_USER": _kept(_HTTP_ONLY),
    "GCS_PROJECT_ID": _kept(_STORES),
    "HTTP2_MAX_FRAME_SIZE": _kept(_CONNECTIONS),
    "HTTPAUTH_DOMAIN": _kept(_HERE),
    "HTTPAUTH_PASS": _kept(_HERE),
    "HTTPAUTH_USER": _kept(_HERE),
    "HTTPCACHE_ALWAYS_STORE": _kept(_CACHE),
    "HTTPCACHE_DBM_MODULE": _kept(_CACHE),
    "HTTPCACHE_DIR": _kept(_CACHE),
    "HTTPCACHE_ENABLED": _said(_CACHE),
    "HTTPCACHE_EXPIRATION_SECS": _kept(_CACHE),
    "HTTPCACHE_GZIP": _kept(_CACHE),
    "HTTPCACHE_IGNORE_HTTP_CODES": _kept(_CACHE),
    "HTTPCACHE_IGNORE_MISSING": _refused("there is no HTTP cache: `crawlog replay` parses stored pages"),
    "HTTPCACHE_IGNORE_RESPONSE_CACHE_CONTROLS": _kept(_CACHE),
    "HTTPCACHE_IGNORE_SCHEMES": _kept(_CACHE),
    "HTTPCACHE_POLICY": _kept(_CACHE),
    "HTTPCACHE_STORAGE": _kept(_CACHE),
    "HTTPERROR_ALLOWED_CODES": _kept(_HERE),
    "HTTPERROR_ALLOW_ALL": _kept(_HERE),
    "HTTPPROXY_AUTH_ENCODING": _kept("the login of a proxy stands in its URL"),
    "HTTPPROXY_ENABLED": _kept("meta['proxy'] and exits.proxies name proxies; the environment is not asked"),
    "HTTPX_HTTP2_ENABLED": _kept(_CONNECTIONS),
    "IMAGES_STORE": _kept(_STORES),
    "IMAGES_STORE_GCS_ACL": _kept(_STORES),
    "IMAGES_STORE_S3_ACL": _kept(_STORES),
    "ITEM_PIPELINES": _mapped("they run in one process beside the sink"),
    "ITEM_PIPELINES_BASE": _mapped("as ITEM_PIPELINES"),
    "ITEM_PROCESSOR": _refused("items pass Scrapy's ItemPipelineManager; remove the setting"),
    "JOBDIR": _said(
        "not needed: the crawl's memory is the log, so every job goes on where it was; `self.state` is a dict of each "
        "process, and is not kept"
    ),
    "LOGSTATS_INTERVAL": _kept("`crawlog run` shows the rate"),
    "LOG_COLOR": _kept(_LOG),
    "LOG_DATEFORMAT": _kept(_LOG),
    "LOG_ENABLED": _mapped(_LOG),
    "LOG_ENCODING": _kept(_LOG),
    "LOG_FILE": _said("the lines go into " + _LOG + ", not into a file of their own"),
    "LOG_FILE_APPEND": _kept(_LOG),
    "LOG_FORMAT": _kept(_LOG),
    "LOG_FORMATTER": _kept("writes the lines of dropped items and of errors; pages and items have none"),
    "LOG_INSTALL_ROOT_HANDLER": _kept(_LOG),
    "LOG_LEVEL": _mapped("least level of the spider's lines in the log; INFO where the project sets none"),
    "LOG_SHORT_NAMES": _kept(_LOG),
    "LOG_STDOUT": _kept("standard output goes into the log in any case"),
    "LOG_VERSIONS": _kept(_LOG),
    "MAIL_FROM": _kept(_CODE),
    "MAIL_HOST": _kept(_CODE),
    "MAIL_PASS": _kept(_CODE),
    "MAIL_PORT": _kept(_CODE),
    "MAIL_SSL": _kept(_CODE),
    "MAIL_TLS": _kept(_CODE),
    "MAIL_USER": _kept(_CODE),
    "MEMDEBUG_ENABLED": _said(_EXTENSION, operator.not_),
    "MEMUSAGE_CHECK_INTERVAL_SECONDS": _kept(_EXTENSION),
    "MEMUSAGE_ENABLED": _kept("the spider's process has a memory limit of crawlog's"),
    "MEMUSAGE_LIMIT_MB": _said("the spider's process has a memory limit of crawlog's"),
    "MEMUSAGE_NOTIFY_MAIL": _said(_EXTENSION, operator.not_),
    "MEMUSAGE_WARNING_MB": _said(_EXTENSION, operator.not_),
    "METAREFRESH_ENABLED": _kept(_HERE),
    "METAREFRESH_IGNORE_TAGS": _kept(_HERE),
    "METAREFRESH_MAXDELAY": _kept(_HERE),
    "META_COPY_WARN_SKIP_KEYS": _kept(_HERE),
    "NEWSPIDER_MODULE": _kept("commands are `crawlog`'s"),
    "PERIODIC_LOG_DELTA": _said(_EXTENSION, operator.not_),
    "PERIODIC_LOG_STATS": _said(_EXTENSION, operator.not_),
    "PERIODIC_LOG_TIMING_ENABLED": _said(_EXTENSION, operator.not_),
    "PLAYWRIGHT_ABORT_REQUEST": _refused(
        "a function cannot look at each request of a page: -s render.block=image,media,font names kinds, and "
        "render.scope=none other hosts"
    ),
    "PLAYWRIGHT_BROWSER_PROVIDER": _refused(_OWN_BROWSER),
    "PLAYWRIGHT_BROWSER_TYPE": _said("the browser is Chromium", lambda value: value in (None, "chromium")),
    "PLAYWRIGHT_CDP_KWARGS": _kept("as PLAYWRIGHT_CDP_URL"),
    "PLAYWRIGHT_CDP_URL": _refused(_OWN_BROWSER),
    "PLAYWRIGHT_CONNECT_KWARGS": _kept("as PLAYWRIGHT_CONNECT_URL"),
    "PLAYWRIGHT_CONNECT_URL": _refused(_OWN_BROWSER),
    "PLAYWRIGHT_CONTEXTS": _mapped("how pages are shown, by name; each has a cookie jar of its own"),
    "PLAYWRIGHT_DEFAULT_NAVIGATION_TIMEOUT": _mapped("render.timeout_s"),
    "PLAYWRIGHT_DOWNLOAD_TIMEOUT": _kept("files are fetched by crawlog's client"),
    "PLAYWRIGHT_LAUNCH_OPTIONS": _said(
        "the browser is the worker's: render.browser is its path, render.sandbox and render.memory_mb are its limits",
        operator.not_,
    ),
    "PLAYWRIGHT_MAX_CONTEXTS": _said(_PAGES, operator.not_),
    "PLAYWRIGHT_MAX_PAGES_PER_CONTEXT": _said(_PAGES, operator.not_),
    "PLAYWRIGHT_PROCESS_REQUEST_HEADERS": _refused(
        "headers are those of the request and of DEFAULT_REQUEST_HEADERS, as with scrapy-playwright's own function",
        lambda value: value in (None, "scrapy_playwright.headers.use_scrapy_headers"),
    ),
    "PLAYWRIGHT_RESTART_DISCONNECTED_BROWSER": _kept("a browser that dies is started again"),
    "RANDOMIZE_DOWNLOAD_DELAY": _kept("a delay is the least rest; it is not drawn by chance"),
    "REACTOR_THREADPOOL_MAXSIZE": _kept(_CODE),
    "REDIRECT_ENABLED": _kept(_HERE),
    "REDIRECT_MAX_TIMES": _kept(_HERE),
    "REDIRECT_PRIORITY_ADJUST": _kept(_HERE),
    "REFERER_ENABLED": _kept(_HERE),
    "REFERRER_POLICIES": _kept(_HERE),
    "REFERRER_POLICY": _kept(_HERE),
    "REMOTE_CONTROL_ENABLED": _kept(_EXTENSION),
    "REMOTE_CONTROL_JOBS_DIR": _kept(_EXTENSION),
    "REMOTE_CONTROL_OUTPUT_MAX_BYTES": _kept(_EXTENSION),
    "REMOTE_CONTROL_TIMEOUT_DEFAULT": _kept(_EXTENSION),
    "REMOTE_CONTROL_TIMEOUT_MAX": _kept(_EXTENSION),
    "REMOTE_CONTROL_TRACEBACK_MAX_BYTES": _kept(_EXTENSION),
    "REQUEST_FINGERPRINTER_CLASS": _mapped("identity of the requests"),
    "RETRY_ENABLED": _mapped("fetch.attempts"),
    "RETRY_EXCEPTIONS": _said("crawlog tries every failure again that another attempt may mend"),
    "RETRY_GIVE_UP_LOG_LEVEL": _kept(_HERE),
    "RETRY_HTTP_CODES": _mapped("fetch.retry_statuses"),
    "RETRY_PRIORITY_ADJUST": _kept("another attempt keeps its place in the queue"),
    "RETRY_TIMES": _mapped("fetch.attempts"),
    "ROBOTSTXT_OBEY": _mapped("robots.obey"),
    "ROBOTSTXT_PARSER": _said("robots.txt is read by crawlog, by RFC 9309"),
    "ROBOTSTXT_USER_AGENT": _mapped("robots.token"),
    "SCHEDULER": _refused(_QUEUES + "; remove the setting", lambda value: not value or is_of_scrapy_redis(value)),
    "SCHEDULER_DEBUG": _kept("`crawlog why URL` says where a request is"),
    "SCHEDULER_DISK_QUEUE": _kept(_QUEUES),
    "SCHEDULER_MEMORY_QUEUE": _mapped("frontier.order"),
    "SCHEDULER_PRIORITY_QUEUE": _kept(_QUEUES),
    "SCHEDULER_START_DISK_QUEUE": _kept(_QUEUES),
    "SCHEDULER_START_MEMORY_QUEUE": _kept(_QUEUES),
    "SCRAPER_SLOT_MAX_ACTIVE_SIZE": _kept("pages are read from the log, one after the other"),
    "SPIDER_CONTRACTS": _kept("for `scrapy check`, which runs as ever"),
    "SPIDER_CONTRACTS_BASE": _kept("for `scrapy check`, which runs as ever"),
    "SPIDER_LOADER_CLASS": _mapped("finds the spider by its name"),
    "SPIDER_LOADER_WARN_ONLY": _mapped("finds the spider by its name"),
    "SPIDER_MIDDLEWARES": _mapped("around callbacks and start, in their order"),
    "SPIDER_MIDDLEWARES_BASE": _mapped("as SPIDER_MIDDLEWARES"),
    "SPIDER_MODULES": _mapped("finds the spider by its name"),
    "STATSMAILER_RCPTS": _said(_EXTENSION, operator.not_),
    "STATS_CLASS": _mapped(
        "opened and closed in the pipelines' process; changes of all processes are added up per job"
    ),
    "STATS_DUMP": _mapped(
        "`crawlog run` writes the sums at its end; the log of a job on a fleet ends with them in any case"
    ),
    "TELNETCONSOLE_ENABLED": _kept(_EXTENSION),
    "TELNETCONSOLE_HOST": _kept(_EXTENSION),
    "TELNETCONSOLE_PASSWORD": _kept(_EXTENSION),
    "TELNETCONSOLE_PORT": _kept(_EXTENSION),
    "TELNETCONSOLE_USERNAME": _kept(_EXTENSION),
    "TEMPLATES_DIR": _kept("commands are `crawlog`'s"),
    "TWISTED_DNS_RESOLVER": _kept("names are resolved by crawlog's client"),
    "TWISTED_REACTOR": _said("the spider's process has an asyncio loop, and a reactor where the project imports one"),
    "TWISTED_REACTOR_ENABLED": _kept("as TWISTED_REACTOR"),
    "URLLENGTH_LIMIT": _kept(_HERE),
    "USER_AGENT": _mapped("fetch.user_agent"),
    "WARN_ON_GENERATOR_RETURN_VALUE": _kept("no warning is written"),
}


# The same for scrapy-redis, whose other settings its own code reads.
REDIS_SETTINGS: dict[str, SettingRow] = {
    "MAX_IDLE_TIME_BEFORE_CLOSE": _kept("the job ends so many seconds after the last entry of the spider's key"),
    "SCHEDULER_DUPEFILTER_KEY": _said("what is known is in the log, not in Redis"),
    "SCHEDULER_FLUSH_ON_START": _said("a job goes on where it was; `--fresh` begins it anew", operator.not_),
    "SCHEDULER_IDLE_BEFORE_CLOSE": _said(
        "no queue is waited for: a spider with a key waits for its next entry, MAX_IDLE_TIME_BEFORE_CLOSE ends that",
        operator.not_,
    ),
    "SCHEDULER_PERSIST": _said("queue and known requests are in the log, and stay when the job is stopped"),
    "SCHEDULER_QUEUE_CLASS": _mapped("frontier.order of equal priorities: FifoQueue has fifo, the others have lifo"),
    "SCHEDULER_QUEUE_KEY": _said("the queue is in the log, not in Redis"),
    "SCHEDULER_SERIALIZER": _said("requests are records of the log"),
}

# Parts of names of settings whose values are hidden.
_SECRETS = ("PASS", "SECRET", "KEY", "TOKEN", "AUTH", "COOKIE", "DSN")

_OF_PROJECT = "read by the project's own code"


def origins_of(settings: BaseSettings) -> Iterator[SettingOrigin]:
    """The settings that the project, the spider or the command line sets, by name."""
    names = {number: name for name, number in SETTINGS_PRIORITIES.items()}
    for name in sorted(settings):
        priority = settings.getpriority(name) or 0
        if priority == 0:
            continue
        row = SETTINGS.get(name) or REDIS_SETTINGS.get(name)
        value = settings[name].copy_to_dict() if isinstance(settings[name], BaseSettings) else settings[name]
        shown = HIDDEN if any(part in name for part in _SECRETS) else repr(value)[:200]
        effect, what = (row.effect, row.what) if row is not None else ("kept", _OF_PROJECT)
        yield SettingOrigin(name, shown, names.get(priority, "default"), effect, what)


class SettingsService:
    """Answers the one call for the origins of the settings."""

    def __init__(self, runner: Any) -> None:
        self.facts: SpiderFacts = runner.facts
        self._settings: BaseSettings | None = runner.crawler.settings if self.facts.is_scrapy else None

    async def call(self, _name: str, _argument: bytes) -> bytes:
        """The origins as JSON; none for a spider of crawlog's own."""
        return msgspec.json.encode(list(origins_of(self._settings)) if self._settings is not None else [])


def load_origins(*given: Any, **named: Any) -> SettingsService:
    """What answers the call. Raises: Misconfigured: as `load_runner`."""
    room = import_module("crawlog.streams.spiders")  # it imports this room
    return SettingsService(room.load_runner(*given, **named))
