"""The settings of the crawl: how hosts are treated, how pages are fetched and rendered, which links are followed.

Every setting has one dotted name, one default and one docstring with its unit. A section is a nested model, so
`politeness.delay_s` is the attribute path, the key in `crawlog.toml` and, as `CRAWLOG_POLITENESS__DELAY_S`, the
environment's name. A key is one section and one field: a deeper nesting has no name in the environment.
"""

import re
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from crawlog.streams.http import RETRY_STATUSES
from crawlog.streams.requests import choose_ciphers, read_header, read_login, read_user_agent
from crawlog.streams.session import read_form

from .field_types import MAX_BODY_BYTES, Count, NotNegative, Positive, Section, Span, compiled, each_readable


class Politeness(Section):
    """Pauses and limits that protect a host."""

    delay_s: NotNegative = 1.0
    """Least rest between two requests to one host, seconds; robots.txt and Retry-After raise it."""
    per_host: Count = 1
    """Requests to one host at a time."""
    per_ip: Annotated[int, Field(ge=0)] = 0
    """Requests to one address at a time, per worker, whatever they ask for; 0 for no limit."""
    ip_rate: Annotated[int, Field(ge=0)] = 10
    """Requests to one address per `politeness.delay_s` of the job that asks, per worker, however many host names lead
    there and whatever the requests ask for; no less than its `politeness.per_host`. 0, or a delay of 0, for no
    limit."""
    per_exit: bool = False
    """Whether delay, Crawl-delay and `politeness.per_host` count for each exit by itself: with E exits a host then gets
    up to E requests per delay, never two by one exit within it. robots.txt still holds."""
    max_delay_s: Positive = 300.0
    """Longest rest that a server may ask for, seconds; a longer wish is cut to this."""


class Limits(Section):
    """A worker's own limits, which no job can widen. `network.*` are such limits, too."""

    delay_s: NotNegative = 0.0
    """Least rest between two requests to one host, seconds, for jobs that want less."""
    per_host: Annotated[int, Field(ge=1)] | None = None
    """Requests to one host at a time, at most."""
    robots: bool = False
    """Whether robots.txt is obeyed even for jobs with `robots.obey=false`."""
    attempts: Annotated[int, Field(ge=1)] | None = None
    """Attempts of a URL, at most."""
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Total time of one request, at most, seconds."""
    max_body_bytes: Annotated[int, Field(ge=1024)] | None = None
    """Largest body, at most; none for what a record of `kafka.max_record_bytes` holds."""


class Fetch(Section):
    """One request, and how many at a time."""

    concurrency: Count = 256
    """URLs in flight in one worker, from dispatch to the acknowledged done; a kill repeats at most these. At most
    half of them go to hosts that have not answered yet, or not lately."""
    timeout_s: Positive = 30.0
    """Total time of one request, seconds."""
    connect_timeout_s: Positive = 10.0
    """Time to connect to one address, seconds; resolving its name counts in `fetch.timeout_s`."""
    first_byte_timeout_s: Positive = 20.0
    """Longest silence before the first byte of a response and within its headers, seconds."""
    chunk_timeout_s: Positive = 15.0
    """Longest silence within a body, seconds."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=MAX_BODY_BYTES)] = 8 << 20
    """Largest body, after decompression; a larger one is a result with error `too_large`."""
    bodies_mb: Annotated[int, Field(ge=8)] = 96
    """Bodies over 256 KiB that one worker holds at a time, MiB; further ones wait, with their servers and deadlines.
    What pages in the browser load is bounded by `render.max_bytes`, page by page."""
    attempts: Count = 3
    """Attempts of a URL that fails or answers 429 or 5xx, the first one included."""
    retry_delay_s: NotNegative = 2.0
    """Wait before the second attempt, seconds; doubles with each further one, with jitter."""
    retry_statuses: tuple[Annotated[int, Field(ge=100, le=999)], ...] = tuple(sorted(RETRY_STATUSES))
    """Status codes after which a URL is tried again; only the last answer is a result."""
    repeat_posts: bool = True
    """Whether a POST (or PATCH) of a spider is sent again if the server may have received it already."""
    conditional: bool = True
    """Whether a later epoch asks by ETag and Last-Modified whether a page is still as it lies in crawl.pages."""
    content_types: tuple[str, ...] = ("text/html", "application/xhtml+xml")
    """Bodies of these types are stored and parsed, with `*/*` of any; others give a row from their headers.

    A spider gets what it asks for whatever its type: the list is for links that are followed for it."""
    user_agent: str = ""
    """The User-Agent header; empty for `crawlog/VERSION`."""
    dns_ttl_s: Positive = 300.0
    """How long the addresses of a name are used, seconds; the answer's own time is not asked. After a failure to
    connect 30 s at most."""
    dns_cache_hosts: Count = 10_000
    """Host names whose addresses are remembered."""
    headers: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """Further request headers, `Name: value`, sent to every host; `From: you@example.org` names a contact. Their values
    are not shown, but stand in the job's record in the log."""
    logins: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """Basic logins, `https://USER:PASSWORD@HOST[:PORT]`; each is sent to that scheme, host and port only."""
    forms: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """Form logins, `https://HOST[:PORT]/PATH#FIELD=VALUE&FIELD=VALUE`, fields percent-encoded: posted, with the hidden
    fields of the form on that page, before a job's first page of that scheme, host and port; the cookies are kept.
    robots.txt is asked about the page, not about the form."""
    logged_out: tuple[Literal["redirect", "401", "403"], ...] = ("redirect", "401", "403")
    """Signs that such a session is over: a redirect to the form's URL, a status."""
    login_again_s: Annotated[float, Field(ge=60)] = 600.0
    """Least time between two logins of a job at one host, seconds; while a failed one stands so long, its URLs fail."""
    cookies: bool = False
    """Whether cookies are kept and sent: by job and registrable domain, in the state and in the log. A page
    that redirects to itself and sets one is then asked for again, up to `fetch.attempts` times."""

    @field_validator("user_agent")
    @classmethod
    def header_is_one_line(cls, value: str) -> str:
        """As any header."""
        return read_user_agent(value)

    @field_validator("headers", "logins", "forms")
    @classmethod
    def each_is_well_formed(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """What is wrong with one is said without repeating it."""
        readers = {"headers": read_header, "logins": read_login, "forms": read_form}
        return each_readable(value, readers[info.field_name or ""])


class Render(Section):
    """Pages that need JavaScript, rendered by a Chromium of the system (extra `browser`); see docs/fetching.md."""

    mode: Literal["off", "auto", "always"] = "off"
    """Which pages are rendered; `render` alone is this setting. `auto`: those whose HTML is empty without scripts."""
    include: tuple[str, ...] = ()
    """Regular expressions (RE2); a URL that matches one is rendered whatever `render.mode` says."""
    exclude: tuple[str, ...] = ()
    """Regular expressions (RE2); a URL that matches one is never rendered."""
    pages: Count = 2
    """Pages in the browser at a time, per worker."""
    timeout_s: Positive = 30.0
    """Time for one page, seconds, the waits for what it asks for included; then what is there by now is taken."""
    settle_s: NotNegative = 0.5
    """A page is ready when it has loaded and has sent no request for this time, seconds."""
    block: tuple[Literal["image", "media", "font", "stylesheet", "script", "fetch", "frame"], ...] = (
        "image",
        "media",
        "font",
        "frame",
    )
    """Requests of a page that are blocked; `frame`: the documents of frames, `fetch`: the requests of scripts."""
    scope: Literal["any", "static", "none"] = "any"
    """What a page may ask for outside its job's scope: all, only what is the same for every page (`static`: scripts,
    style sheets, fonts, images), or nothing. By host names alone, without `scope.include` and `scope.exclude`."""
    max_requests: Annotated[int, Field(ge=0)] = 100
    """Requests of one page beside its own, at most."""
    max_bytes: Annotated[int, Field(ge=1024)] = 32 << 20
    """Bytes that these requests may load in total; `fetch.max_body_bytes` bounds each one."""
    cache_bytes: Annotated[int, Field(ge=0)] = 32 << 20
    """Cache of scripts and style sheets in one worker, separate for each job and epoch, bytes."""
    memory_mb: Annotated[int, Field(ge=256)] = 700
    """Memory of the browser, all its processes, MiB; beyond it the largest page is ended."""
    recycle_pages: Count = 500
    """The browser is started anew after so many pages."""
    browser: str = ""
    """Path of the browser; empty for the first of `chromium`, `chromium-browser` and `google-chrome` on the PATH."""
    sandbox: bool = True
    """Whether the browser runs in its sandbox. Chromium has none when root starts it: root must say false to render."""

    @field_validator("include", "exclude")
    @classmethod
    def patterns_compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """As for scopes."""
        return compiled(value)


class Network(Section):
    """Which addresses may be reached."""

    allow_private: bool = False
    """Whether private, loopback and link-local addresses may be fetched. Metadata addresses never are."""
    verify_tls: bool = True
    """Whether a server must show a certificate for its name that a known authority signed."""
    ca_file: Path | None = None
    """Further certificate authorities, a PEM file."""
    min_tls: Literal["1.2", "1.3"] = "1.2"
    """Oldest version of TLS that is spoken."""
    tls: str = "compatible"
    """Servers that are spoken to: `compatible` for those that Chromium takes; `modern` for those with RFC 5746, without
    RSA key exchange, without CBC with SHA-1; or ciphers by OpenSSL's names, such as `DEFAULT:@SECLEVEL=0`."""
    dns_servers: tuple[str, ...] = ()
    """Name servers that are asked instead of the system's, `ADDRESS[:PORT]`, an IPv6 address in brackets."""

    @field_validator("tls")
    @classmethod
    def ciphers_are_known(cls, value: str) -> str:
        """OpenSSL judges a list."""
        try:
            choose_ciphers(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), value)
        except ssl.SSLError:
            raise ValueError(
                f"{value!r:.100} is neither compatible nor modern, nor ciphers that OpenSSL knows"
            ) from None
        return value

    @field_validator("dns_servers")
    @classmethod
    def servers_are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """A name server's own name could not be resolved."""
        for text in value:
            parts = urlsplit(f"//{text}")
            try:
                ip_address(parts.hostname or "")
                is_server = parts.port != 0 and parts.netloc == text and "@" not in text
            except ValueError:
                is_server = False
            if not is_server:
                raise ValueError(f"{text!r} is no ADDRESS[:PORT] of a name server")
        return value


class Robots(Section):
    """robots.txt (RFC 9309)."""

    obey: bool = True
    """Whether robots.txt is fetched and obeyed."""
    token: str = "crawlog"  # noqa: S105  # a robots.txt product token
    """Product token that robots.txt groups are matched with."""
    attempts: Count = 3
    """Tries at an unreachable robots.txt before the host's URLs fail."""
    retry_window_s: NotNegative = 60.0
    """Those tries take place within this time, seconds; one that Retry-After puts off beyond it is the last."""
    meta: Literal["ignore", "obey"] = "ignore"
    """Whether `meta` robots and X-Robots-Tag are obeyed: `nofollow` sends no link, `noindex` writes no row."""

    @field_validator("token")
    @classmethod
    def token_is_a_product(cls, value: str) -> str:
        """RFC 9309 2.2.1: letters, dashes and underscores; anything else would match no group."""
        if not re.fullmatch(r"[A-Za-z_-]+", value):
            raise ValueError("a product token has letters, dashes and underscores only")
        return value


class Scope(Section):
    """Which URLs belong to a job."""

    kind: Literal["domain", "host", "seeds", "any"] = "domain"
    """Which URLs belong to a job; `scope` alone is this setting. `domain`: registrable domain or IP of a seed."""
    include: tuple[str, ...] = ()
    """Regular expressions (RE2, at most 2,000 instructions together); when there are any, a URL must match one."""
    exclude: tuple[str, ...] = ()
    """Regular expressions (RE2); a URL that matches one is out."""
    max_pages_per_domain: Annotated[int, Field(ge=1)] | None = None
    """URLs queued for one registrable domain, at most."""
    max_redirects: Annotated[int, Field(ge=0)] = 10
    """Redirects in a row that are followed."""
    max_url_length: Annotated[int, Field(ge=16, le=8192)] = 2083
    """Longest URL taken, characters."""

    @field_validator("include", "exclude")
    @classmethod
    def patterns_compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """RE2 matches in linear time, so it knows no look-around and no back-reference."""
        return compiled(value)


class Traps(Section):
    """Sites without end: which of their URLs are dropped. A *stray* looks like one page more of a trap."""

    max_segments: Count = 40
    """Path segments of a URL, at most; honest trees end before 20."""
    max_repeats: Count = 3
    """Times that one path segment may stand in a URL; Heritrix draws the line here too."""
    max_params: Count = 40
    """Query parameters of a URL, at most."""
    calendar: bool = True
    """Whether a date found on another date of its kind (`/2026/11/`, `?month=11`) is a stray."""
    growing: bool = True
    """Whether a URL that repeats or lengthens the path or query of the page it was found on is a stray."""
    facets: bool = True
    """Whether a combination of parameters is a stray where a path has more than three that can be combined."""
    sessions: bool = True
    """Whether a URL with a session id is dropped once its page is known without one, or with another."""
    strays: Annotated[int, Field(ge=0)] = 100
    """Strays of one host that are taken, and one more for each ten URLs of its domain."""
    hosts: Annotated[int, Field(ge=1)] | None = 100
    """Hosts of one registrable domain that links may add, and one more for each ten of its URLs."""


class Recrawl(Section):
    """When URLs that are done are fetched again, in the same epoch; such a job is `watching` between, not finished."""

    age: Annotated[Span | None, BeforeValidator(lambda value: None if value == "off" else value)] = None
    """How long after it was done a URL is due again: seconds, or `30m`, `6h`, `7d`; `off` for never."""
    adaptive: bool = False
    """Whether a URL is due in half the time once its items changed, and in half more once they did not."""
    min_age: Span = 60.0
    """Shortest time that `adaptive` comes to."""
    max_age: Span = 90 * 86_400.0
    """Longest time that `adaptive` comes to, and that an unchanged `lastmod` or `itag` spares a request."""
    ignore: tuple[str, ...] = ()
    """Fields of items that are no change, such as `scraped_at`."""


class Canonical(Section):
    """How two spellings become one URL; a fragment, a login, the dot that may end a host's name are dropped always."""

    drop_params: tuple[str, ...] = ("utm_*", "gclid", "fbclid", "msclkid")
    """Query parameters dropped from every URL; a trailing `*` is a prefix."""
    drop_sessions: bool = False
    """Whether session ids are dropped: `PHPSESSID=…`, `;jsessionid=…`, `/(S(…))/` and their like."""
    sort_query: bool = False
    """Whether query parameters are sorted by name."""
    index_files: tuple[str, ...] = ()
    """File names dropped from the end of a path, such as `index.html`."""
    drop_www: bool = False
    """Whether `www.` is dropped from host names."""
    drop_slash: bool = False
    """Whether slashes are dropped from the end of a path."""
    verbatim: bool = False
    """Whether URLs are requested as they are written, as Scrapy does; the other rules do not count then."""


LinkSource = Literal["a", "area", "frame", "refresh"]


class Links(Section):
    """What counts as a link."""

    sources: tuple[LinkSource, ...] = ("a", "area", "frame", "refresh")
    """Where links are taken from: elements by name (`frame` with `iframe`), and `refresh` (`meta` and header)."""
    nofollow: Literal["follow", "skip"] = "follow"
    """What becomes of links with rel=nofollow: they are links, or they are counted in the row only."""
    max_per_page: Count = 50_000
    """Links of one page that are looked at (the most URLs a sitemap may have); the rest is cut."""


class Sitemaps(Section):
    """Sitemaps as a source of URLs."""

    follow: bool = False
    """Whether sitemaps named in robots.txt are read; needs `robots.obey`. What they list is in scope or is not."""
    max_bytes: Annotated[int, Field(ge=1024)] = 50 << 20
    """Bytes read of one sitemap, decompressed (sitemaps.org: 50 MB); the rest is cut. As it comes, a sitemap is no
    larger than `fetch.max_body_bytes`."""


class Dedup(Section):
    """How known URLs are recognised."""

    mode: Literal["exact", "bloom"] = "exact"
    """`exact` keeps whole fingerprints, 8 bytes a URL, and drops no new URL. `bloom` keeps a Bloom filter, 3.1 bytes a
    URL at 100 million URLs and more below 10 million, and drops new URLs as known at the rate `dedup.error`. For tens
    of millions of URLs that outgrow memory; fixed per job."""
    error: Annotated[float, Field(ge=1e-5, le=0.1)] = 1e-4
    """Highest share of new URLs that `bloom` drops as known; fixed per job."""


class Fingerprint(Section):
    """What tells two requests of a spider apart, beside URL, method and body."""

    headers: tuple[str, ...] = ()
    """Names of request headers, such as `Accept-Language`; fixed per job."""


class Frontier(Section):
    """In which order URLs are fetched."""

    order: Literal["fifo", "lifo"] = "fifo"
    """Order within one host and priority."""


class Spider(Section):
    """Your own spider: its limits and its processes."""

    log: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of what the spider writes by `logging`: such lines, and all that it prints, stand in `crawlog jobs
    logs` and above the table of `run`. A setting of the job. A Scrapy project's `LOG_LEVEL` goes before it; a spider
    that sets up `logging` itself decides."""
    env: tuple[str, ...] = ()
    """Names of environment variables that the spider's process gets, beside PATH, HOME, LANG, LC_ALL, LC_CTYPE, TZ,
    TMPDIR, PYTHONPATH, LD_LIBRARY_PATH, SCRAPY_PROJECT and SCRAPY_SETTINGS_MODULE. It gets no others, and no passwords
    of Kafka."""
    own_user: bool = True
    """Whether deployed code runs as a user of its own, where the worker runs as root: it is refused where that user
    could not read Python. `false` lets it run as root. Files named by `--spider` run as the worker's user."""
    children: Count = 4
    """Processes of spiders at once in a parse worker, at most; each job has its own."""
    starts: Count = 32
    """Jobs whose `start` runs at once in `crawlog up` or `crawlog worker start`, at most: each has a process. Further
    ones wait, in the order in which they were submitted."""
    max_items: Count = 10_000
    """Items and requests of one page, at most; a page that gives more goes to crawl.dead."""


class Pipelines(Section):
    """The item pipelines of your spider, which run in a process beside the sink."""

    resume: Literal["restart", "continue"] = "restart"
    """What happens when their process has ended, or a page gave other items than before. `restart`: a fresh process
    gets all items from the first one on, and makes all rows again. `continue`: it gets the next items, and the rows
    stay; so it is in any case for a spider that is fed, such as scrapy-redis's."""
    timeout_s: Positive = 300.0
    """Longest time for some items, at most 1 MiB of them, or for `open_spider` and `close_spider`, seconds; downloads
    do not count."""
    max_file_mb: Count = 64
    """Longest body of a request that code makes by `crawler.engine.download`, such as a file of FilesPipeline, MiB."""
    files: str = ""
    """Folder or address (`s3://bucket/folder`) in which deployed projects keep the files of FilesPipeline and
    ImagesPipeline: FILES_STORE and IMAGES_STORE are folders in it. Empty: such a project is refused."""
