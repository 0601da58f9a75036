"""What becomes of each key of `meta` that Scrapy gives a meaning. Other keys are the spider's own and travel.

A key is mapped (a field of the request's record), run (a class of Scrapy that runs beside the spider uses it, so it
travels), left behind (made anew for each page), or refused, because without it the crawl would be another one.
"""

import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Fate = Literal["mapped", "run", "left", "refused"]


class MetaRow(NamedTuple):
    """What becomes of a key.

    Attributes:
        what: The field, the class, or the way out.
        is_harmless: Of a refused key: whether a value changes nothing.
    """

    fate: Fate
    what: str
    is_harmless: Callable[[Any], bool] = lambda value: value is None


_NO_PAGE = (
    "a page of the browser cannot travel in the log, and ends when its body is stored: say what is done with it by "
    "PageMethods, whose results come with the response"
)

# Every key that the installed Scrapy and scrapy-playwright read, by its name; a test compares.
META: dict[str, MetaRow] = {
    # Mapped to fields of the record; they also travel, for the spider reads them.
    "cookiejar": MetaRow("mapped", "the name of the jar"),
    "dont_merge_cookies": MetaRow("mapped", "no cookies are sent, none are kept"),
    "proxy": MetaRow("mapped", "the request's proxy; the egress guard asks exits.proxies"),
    "download_timeout": MetaRow("mapped", "time of the request"),
    "dont_retry": MetaRow("mapped", "one attempt"),
    "max_retry_times": MetaRow("mapped", "attempts"),
    "retry_times": MetaRow("mapped", "attempts before the page; fewer attempts are left"),
    "handle_httpstatus_list": MetaRow("mapped", "statuses whose answers go to the callback"),
    "handle_httpstatus_all": MetaRow("mapped", "all answers go to the callback"),
    "dont_redirect": MetaRow("mapped", "a redirect goes to the callback"),
    "playwright": MetaRow("mapped", "a browser renders the page, and goes where it leads"),
    "playwright_page_methods": MetaRow("mapped", "actions in the browser; their results are there when the page comes"),
    "playwright_page_goto_kwargs": MetaRow("mapped", "`wait_until`; `timeout` is render.timeout_s"),
    "playwright_context": MetaRow("mapped", "a cookie jar, and how the page is shown"),
    "playwright_context_kwargs": MetaRow("mapped", "how the page is shown"),
    # Used by Scrapy's classes that run beside the spider.
    "redirect_times": MetaRow("run", "RedirectMiddleware"),
    "redirect_ttl": MetaRow("run", "RedirectMiddleware"),
    "redirect_urls": MetaRow("run", "RedirectMiddleware"),
    "redirect_reasons": MetaRow("run", "RedirectMiddleware"),
    "depth": MetaRow("run", "DepthMiddleware"),
    "depth_reset": MetaRow("run", "DepthMiddleware"),
    "referrer_policy": MetaRow("run", "RefererMiddleware"),
    "allow_offsite": MetaRow("run", "OffsiteMiddleware"),
    "is_start_request": MetaRow("run", "StartSpiderMiddleware"),
    "http_user": MetaRow("run", "HttpAuthMiddleware"),
    "http_pass": MetaRow("run", "HttpAuthMiddleware"),
    "http_auth_domain": MetaRow("run", "HttpAuthMiddleware"),
    "rule": MetaRow("run", "CrawlSpider"),
    "verbatim_url": MetaRow("run", "Request: its URL is not escaped"),
    "give_up_log_level": MetaRow("run", "a RetryMiddleware of the project"),
    "priority_adjust": MetaRow("run", "a RetryMiddleware of the project"),
    # For the HTTP cache and AutoThrottle, which crawlog does not have; they change no item.
    "dont_cache": MetaRow("run", "nothing: there is no HTTP cache, and the log keeps each page"),
    "_dont_cache": MetaRow("left", "the HTTP cache"),
    "cache_timestamp": MetaRow("left", "the HTTP cache"),
    "cached_response": MetaRow("left", "the HTTP cache"),
    "autothrottle_dont_adjust_delay": MetaRow("run", "nothing: hosts rest by politeness.*"),
    "download_slot": MetaRow("run", "nothing: hosts and addresses are limited, by politeness.*; a warning says so"),
    "download_warnsize": MetaRow("run", "nothing: no warning is written"),
    # Made anew for each page.
    "download_latency": MetaRow("left", "seconds that the request took"),
    "_auth_proxy": MetaRow("left", "HttpProxyMiddleware"),
    "_scheme_proxy": MetaRow("left", "HttpProxyMiddleware"),
    "playwright_security_details": MetaRow("left", "scrapy-playwright"),
    "playwright_suggested_filename": MetaRow("left", "scrapy-playwright"),
    # Without them the crawl would be another one.
    "dont_obey_robotstxt": MetaRow(
        "refused",
        "robots.txt is obeyed by all requests of a job or by none: set ROBOTSTXT_OBEY = False",
        lambda value: not value,
    ),
    "bindaddress": MetaRow("refused", "a worker sends from its machine's address: use meta['proxy']"),
    "download_maxsize": MetaRow("refused", "bodies are limited per job: set DOWNLOAD_MAXSIZE"),
    "download_fail_on_dataloss": MetaRow(
        "refused",
        "a body that breaks off is an error, as by default in Scrapy",
        lambda value: value in (None, True),
    ),
    "playwright_include_page": MetaRow("refused", _NO_PAGE, operator.not_),
    "playwright_page": MetaRow("refused", _NO_PAGE),
    "playwright_page_event_handlers": MetaRow("refused", _NO_PAGE, operator.not_),
    "playwright_page_init_callback": MetaRow("refused", _NO_PAGE),
    "ftp_user": MetaRow("refused", "crawlog fetches http and https only"),
    "ftp_password": MetaRow("refused", "crawlog fetches http and https only"),
    "ftp_passive": MetaRow("refused", "crawlog fetches http and https only"),
    "ftp_local_filename": MetaRow("refused", "crawlog fetches http and https only"),
    "is_secure": MetaRow("refused", "crawlog fetches http and https only, not S3"),
}

# crawlog's own keys: the arguments of the same name of `crawlog.Request`. They are of one request: a callback that
# passes `meta=response.meta` on does not mean them.
AGAIN = {"crawlog_age": "age", "crawlog_itag": "itag"}
TIMING = {"crawlog_eta": "eta", "crawlog_countdown": "countdown", "crawlog_expires": "expires", **AGAIN}

LEFT_BEHIND = TIMING.keys() | {key for key, row in META.items() if row.fate == "left"}  # Keys that do not travel


def refusal(key: str, value: Any, *, obeys_robots: bool) -> str:
    """Why a key of `meta` is refused; empty if it is not.

    Args:
        obeys_robots: Whether the job obeys robots.txt; if not, nothing is left to refuse.
    """
    row = META.get(key)
    if row is None or row.fate != "refused" or row.is_harmless(value):
        return ""
    if key == "dont_obey_robotstxt" and not obeys_robots:
        return ""
    return row.what
