"""crawl.urls: the URLs found for a domain and the results of their attempts.

A record is one of seven, told apart by the field it has: `urls` (found), `results` (done), `changes` (digests of
items), `spec` (job), `joins` (scope names of a job), `rewind` (epoch), `order` (change of a job). All are JSON, so that
kcat reads the crawl. From any Kafka client a bare `{"url": …}` or a plain line is a found of one URL; blanks and a BOM
around it do not count.
Keyed by registrable domain; a batch over several domains of one partition has no key and the partition set.
"""

# long: one file a topic, and the job's record is one of this topic's kinds.

import codecs
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from .codec import decoded, version_1
from .job_orders import CodeRef, JobFlow, JobStateName, OutputSpec, ParseAgain
from .requests import RequestRecord, check_identity

VERSION = 1  # A record of another version goes to crawl.dead

USUAL_PRIORITY = 5  # Of a job, from 0 to 9

MAX_PRIORITY = (1 << 31) - 1  # The lowest priority is its negative, less 1: a state's row has 32 bits for it

MAX_BATCH_URLS = 500  # URLs or results in one record, at most

MAX_BATCH_BYTES = 256 * 1024  # Encoded size at which a batch is closed, bytes

MAX_BATCH_NAMES = 1_000  # Scope names in one record, at most: 260 kB

MAX_NAME_CHARS = 270  # Longest scope name: a host name, a colon and a port

MAX_URL_BYTES = 64 * 1024  # A longer URL is refused before it is parsed, bytes

MAX_VIA_BYTES = 512  # Fingerprints of 64 redirects in a row: more than any client follows

MAX_EPOCH = 0xFFFF  # Epochs are two bytes in the state's keys

Source = Literal["seed", "link", "redirect", "sitemap"]
Status = Literal["fetched", "redirected", "not_modified", "failed", "refused"]
# `began`: a request that is never sent twice is about to be sent; every other status ends an attempt.
AttemptStatus = Literal[Status, "began"]


class FoundUrl(msgspec.Struct, omit_defaults=True, frozen=True):
    """A URL that a producer found.

    Attributes:
        url: Absolute; canonical if parse wrote it, in any spelling from other producers.
        id: Identity of the request, made where the request was made; 0 for a plain GET, which its URL identifies.
        request: All of the request but its URL; None for a plain GET.
        depth: Links between a seed and this URL; a redirect keeps its source's depth.
        priority: -2^31..2^31-1; higher is fetched first.
        source: How it was found. A seed (the default) joins the job's scope. `sitemap` is the URL *of* a sitemap, found
            in robots.txt or in an index; the URLs that it lists are links.
        parent: URL of the page it was found on; empty for seeds.
        hops: Redirects in a row that led here.
        via: Identities of the requests that these redirects answered, 8 bytes each, the first one first.
        joins: This redirect target was reached from a seed, so its host joins the scope.
        again: The status of its done, which no longer counts: its page was lost in a power cut, or it is asked for
            again. The URL is queued although it is known.
        again_http, again_why: Of that done, for the job's counts: its status code, and why there was no page.
        checked: Whether it redirected to a check for cookies that leads back to it. It is queued once more, and only
            once, although it is known.
        eta: UTC epoch seconds before which it is not fetched; 0 for at once.
        expires: UTC epoch seconds from which on it is not fetched any more: it ends as refused; 0 for never.
        age: How long after it was done it is due again, seconds; 0 for the job's `recrawl.age`. Jobs without one ignore
            this and the two that follow.
        itag: Version of the page: a known URL that was found with another one is due at once, with the same one it is
            not asked for until later.
        lastmod: UTC epoch seconds of the page's last change, from a sitemap; 0 if unknown. It works like `itag`.
    """

    url: str
    depth: int = 0
    priority: int = 0
    source: Source = "seed"
    parent: str = ""
    hops: int = 0
    joins: bool = False
    again: Status | None = None
    again_http: int | None = None
    again_why: str = ""
    checked: bool = False
    id: int = 0
    request: RequestRecord | None = None
    via: bytes = b""
    eta: float = 0.0
    expires: float = 0.0
    age: float = 0.0
    itag: str = ""
    lastmod: float = 0.0


class CookieChange(msgspec.Struct, omit_defaults=True, frozen=True):
    """A cookie of a jar as it is after an answer. Name, domain, `wide` and path are its identity.

    Attributes:
        domain: A host name, or the domain that the server gave.
        wide: Whether it is sent to the hosts below `domain` too.
        expires: UTC epoch seconds; None for a cookie without an end.
        gone: Whether it was removed.
    """

    name: str
    value: str = ""
    domain: str = ""
    path: str = "/"
    wide: bool = False
    secure: bool = False
    expires: float | None = None
    gone: bool = False


class Result(msgspec.Struct, omit_defaults=True, frozen=True):
    """The result of one attempt to fetch one URL.

    Attributes:
        url: Canonical, as queued.
        id: Identity of its request; 0 for a plain GET.
        row: The queue row's sequence: (offset << 16) + index of the found that queued it.
        priority: The queue row's priority: with `row` and the URL's host it is the row's key.
        status: `failed` with `next_at` is tried again; `began` leaves the row; all others are final.
        reason: Why it failed or was refused, one word or short phrase.
        rule: The rule that refused it, e.g. a robots.txt line.
        http: The response's status code; None when there was no response.
        attempt: 1 for the first.
        depth: The depth it was fetched at; a row whose depth was lowered meanwhile is fetched again.
        at: UTC epoch seconds when the attempt ended.
        took_s: Length of the attempt.
        next_at: UTC epoch seconds of the next attempt; 0 when final.
        delay_s: The length of that wait; a restored wait is never longer.
        host_wait_s: Rest of the whole host from `at` on (backoff, Retry-After), seconds; 0 if only the crawl delay.
        page: (partition, offset) of the record in crawl.pages; None when there is none (retries and refusals).
        jar: Name of the cookie jar that `cookies` belong to; empty for the job's own.
        cookies: Cookies that changed in that jar and are in no done before this one. They may be of earlier answers.
        unkept: The type of a page's body that was not kept because of it; empty otherwise.
        bytes: Of the body in that record, as it came.
    """

    url: str
    row: int
    status: AttemptStatus
    priority: int = 0
    reason: str = ""
    rule: str = ""
    http: int | None = None
    attempt: int = 1
    depth: int = 0
    at: float = 0.0
    took_s: float = 0.0
    next_at: float = 0.0
    delay_s: float = 0.0
    host_wait_s: float = 0.0
    page: tuple[int, int] | None = None
    id: int = 0
    jar: str = ""
    cookies: tuple[CookieChange, ...] = ()
    unkept: str = ""
    bytes: int = 0

    @property
    def why_no_page(self) -> str:
        """Why a final result gave no page, one word or a type; empty for a page, and where no request was made."""
        return "" if self.status == "refused" else self.unkept or self.reason.partition(":")[0]


class PageChange(msgspec.Struct, omit_defaults=True, frozen=True):
    """The digest of a page's items, written by parse behind them; only for jobs whose URLs are due again.

    Attributes:
        url, row, priority: As in the page's done.
        page: Offset of the page in crawl.pages; its partition is the record's.
        digest: Of the items, or of the links where there are no items. Of a page that answers with 404 or 410 it is
            `GONE` if the page was there before, else `MISSING`.
        item: (partition, offset) in crawl.items of the record that had these items first; None without items.
    """

    url: str
    row: int
    page: int
    digest: int
    item: tuple[int, int] | None = None
    priority: int = 0


GONE, MISSING = 1, 2


class Setting(NamedTuple):
    """The setting that a field of a job's record is made of. The fields of a group have the section of its name.

    Attributes:
        key: The setting's dotted name.
        true_if: For a boolean made of a word: the word that makes it true.
        is_secret: Whether the record says only that the setting is given.
        is_fixed: Whether a job has the value for its life: keys of the state depend on it.
    """

    key: str
    true_if: str = ""
    is_secret: bool = False
    is_fixed: bool = False


class ScopeSpec(msgspec.Struct, omit_defaults=True, frozen=True):
    """Which URLs a job may fetch.

    Attributes:
        kind: `domain`: registrable domain or IP of a seed; `host` and `seeds`: host name and port; `any`.
        names: The seeds' registrable domains (kind domain) or `host:port` names (host, seeds), sorted. If there are
            very many, only the first are here; the others join by other records (`UrlsRecord.joins`, `control.Join`).
        include: Regular expressions (RE2); when there are any, a URL must match one.
        exclude: Regular expressions (RE2); a URL that matches one is not in scope.
    """

    kind: Literal["domain", "host", "seeds", "any"] = "domain"
    names: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class CanonicalRules(msgspec.Struct, omit_defaults=True, frozen=True):
    """Rules that give two spellings of a page one canonical URL.

    Attributes:
        drop_params: Query parameters dropped by name; a trailing `*` is a prefix.
        drop_sessions: Whether session ids in path and query are dropped.
        sort_query: Whether parameters are sorted by name; those of one name keep their order.
        index_files: Names of files that are their folder.
        drop_www: Whether a leading `www.` of the host is dropped.
        drop_slash: Whether slashes at the path's end are dropped.
        verbatim: Whether URLs are requested as written, without their fragment; no other rule counts then.
    """

    drop_params: tuple[str, ...] = ("utm_*", "gclid", "fbclid", "msclkid")
    drop_sessions: bool = False
    sort_query: bool = False
    index_files: tuple[str, ...] = ()
    drop_www: bool = False
    drop_slash: bool = False
    verbatim: bool = False


class TrapRules(msgspec.Struct, omit_defaults=True, frozen=True):
    """Rules against crawler traps.

    Attributes:
        max_segments: Path segments of a URL, at most.
        max_repeats: Occurrences of one path segment in a URL, at most.
        max_params: Query parameters of a URL, at most.
        calendar: Whether dates found on dates are strays.
        growing: Whether URLs that grow from page to page are strays.
        facets: Whether combinations of more than three facets are strays.
        sessions: Whether a URL is refused if its page is known with another session id or with none.
        strays: Strays of one host that are taken, and one more for each ten URLs of its domain.
        hosts: Hosts of one domain other than its own name, at most, and one more for each ten URLs; None for no limit.
    """

    max_segments: int = 40
    max_repeats: int = 3
    max_params: int = 40
    calendar: bool = True
    growing: bool = True
    facets: bool = True
    sessions: bool = True
    strays: int = 100
    hosts: int | None = 100


class RenderRules(msgspec.Struct, omit_defaults=True, frozen=True):
    """Rules for the pages that a browser renders.

    Attributes:
        mode: No page, pages whose HTML is empty without scripts, or all pages.
        include: Regular expressions (RE2); a URL that matches one is rendered in any mode.
        exclude: Regular expressions (RE2); a URL that matches one is never rendered.
        scope: What a rendered page may request outside the job's scope: all, what all pages share, or nothing.
    """

    mode: Literal["off", "auto", "always"] = "off"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    scope: Literal["any", "static", "none"] = "any"


class RecrawlRules(msgspec.Struct, omit_defaults=True, frozen=True):
    """When URLs that are done are due again.

    Attributes:
        age: How long after it was done, seconds; None for never.
        adaptive: Whether a URL that changed is due sooner from then on, and one that did not later.
        min_age, max_age: Bounds of that, seconds; `max_age` also bounds how long a `lastmod` or an `itag` postpones it.
        ignore: Fields of items that are no change.
    """

    age: Annotated[float, msgspec.Meta(gt=0)] | None = None
    adaptive: bool = False
    min_age: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    max_age: Annotated[float, msgspec.Meta(gt=0)] = 90 * 86_400.0
    ignore: tuple[str, ...] = ()


# Value of a field that a job's record does not have; `policy_of` replaces it by the worker's setting.
_UNSAID: Any = None

_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Http = Annotated[int, msgspec.Meta(ge=100, le=999)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_ExitPolicy = Annotated[str, msgspec.Meta(pattern=r"^(sticky|request|every:[1-9]\d{0,8}|time:[1-9]\d{0,8}s)$")]
_Tls = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]


class RequestRules(msgspec.Struct, omit_defaults=True, frozen=True):
    """How the URLs of a job are requested; each field is made of a setting.

    A worker also has limits of its own. Its settings fill in missing fields: `crawlog seed` writes only settings that
    it was given.

    Attributes:
        delay_s: Least rest between two requests to one host, seconds.
        per_host: Requests to one host at a time.
        max_delay_s: Longest rest that a server may ask for, seconds.
        robots: Whether robots.txt is fetched and obeyed.
        user_agent: The User-Agent header; empty for `crawlog/VERSION`.
        headers: Further request headers, `Name: value`.
        attempts: Attempts of a URL, the first one included.
        retry_delay_s: Wait before the second attempt, seconds.
        retry_statuses: Status codes after which a URL is tried again.
        repeat_posts: Whether a POST is sent again if the server may have received it.
        timeout_s: Total time of one request, seconds.
        connect_timeout_s, first_byte_timeout_s, chunk_timeout_s: Longest silences within it, seconds.
        max_body_bytes: Largest body, after decompression.
        content_types: Types of bodies that are stored and parsed; `*/*` for any.
        conditional: Whether a later epoch asks by ETag and Last-Modified.
        cookies: Whether cookies are kept and sent.
        logged_out, login_again_s: When a form is posted again; the forms are secret settings of the worker.
        allow_private: Whether private addresses may be requested, if the worker also allows them.
        verify_tls: Whether a server must show a valid certificate.
        min_tls: Oldest version of TLS that is accepted.
        tls: Which servers are spoken to: `compatible`, `modern`, or ciphers.
        proxied: Whether every request must go through a proxy; the proxies are secret settings of the worker.
        exit_policy, exit_group: How its requests change their exit, and by which of the worker's exits they go.
        exit_refusals: Times that a URL is sent by another exit before an answer counts that turned its exit away.
        ban_statuses, ban_redirects, ban_texts: Signs of such an answer: statuses, and regular expressions (RE2).
        ban_rest_s: First rest of an exit for a host that turned it away, seconds.
        per_exit: Whether delay and requests at a time count for each exit by itself.
        render_timeout_s, render_settle_s: Time for a page in the browser, seconds.
        render_block: Kinds of resources that a rendered page does not get.
        render_max_requests, render_max_bytes: Most requests of a rendered page, and most bytes of their answers.
    """

    delay_s: Annotated[_Seconds, Setting("politeness.delay_s")] = _UNSAID
    per_host: Annotated[_Count, Setting("politeness.per_host")] = _UNSAID
    max_delay_s: Annotated[_Seconds, Setting("politeness.max_delay_s")] = _UNSAID
    robots: Annotated[bool, Setting("robots.obey")] = _UNSAID
    user_agent: Annotated[str, Setting("fetch.user_agent")] = _UNSAID
    headers: Annotated[tuple[str, ...], Setting("fetch.headers")] = _UNSAID
    attempts: Annotated[_Count, Setting("fetch.attempts")] = _UNSAID
    retry_delay_s: Annotated[_Seconds, Setting("fetch.retry_delay_s")] = _UNSAID
    retry_statuses: Annotated[tuple[_Http, ...], Setting("fetch.retry_statuses")] = _UNSAID
    repeat_posts: Annotated[bool, Setting("fetch.repeat_posts")] = _UNSAID
    timeout_s: Annotated[_Positive, Setting("fetch.timeout_s")] = _UNSAID
    connect_timeout_s: Annotated[_Positive, Setting("fetch.connect_timeout_s")] = _UNSAID
    first_byte_timeout_s: Annotated[_Positive, Setting("fetch.first_byte_timeout_s")] = _UNSAID
    chunk_timeout_s: Annotated[_Positive, Setting("fetch.chunk_timeout_s")] = _UNSAID
    max_body_bytes: Annotated[_Count, Setting("fetch.max_body_bytes")] = _UNSAID
    content_types: Annotated[tuple[str, ...], Setting("fetch.content_types")] = _UNSAID
    conditional: Annotated[bool, Setting("fetch.conditional")] = _UNSAID
    cookies: Annotated[bool, Setting("fetch.cookies")] = _UNSAID
    logged_out: Annotated[tuple[Literal["redirect", "401", "403"], ...], Setting("fetch.logged_out")] = _UNSAID
    login_again_s: Annotated[Annotated[float, msgspec.Meta(ge=60)], Setting("fetch.login_again_s")] = _UNSAID
    allow_private: Annotated[bool, Setting("network.allow_private")] = _UNSAID
    verify_tls: Annotated[bool, Setting("network.verify_tls")] = _UNSAID
    min_tls: Annotated[Literal["1.2", "1.3"], Setting("network.min_tls")] = _UNSAID
    tls: Annotated[_Tls, Setting("network.tls")] = _UNSAID
    proxied: Annotated[bool, Setting("exits.proxies", is_secret=True)] = _UNSAID
    exit_policy: Annotated[_ExitPolicy, Setting("exits.policy")] = _UNSAID
    exit_group: Annotated[str, Setting("exits.group")] = _UNSAID
    exit_refusals: Annotated[_Count, Setting("exits.refusals")] = _UNSAID
    ban_statuses: Annotated[tuple[_Http, ...], Setting("exits.ban_statuses")] = _UNSAID
    ban_redirects: Annotated[tuple[str, ...], Setting("exits.ban_redirects")] = _UNSAID
    ban_texts: Annotated[tuple[str, ...], Setting("exits.ban_texts")] = _UNSAID
    ban_rest_s: Annotated[_Seconds, Setting("exits.ban_rest_s")] = _UNSAID
    per_exit: Annotated[bool, Setting("politeness.per_exit")] = _UNSAID
    render_timeout_s: Annotated[_Positive, Setting("render.timeout_s")] = _UNSAID
    render_settle_s: Annotated[_Seconds, Setting("render.settle_s")] = _UNSAID
    render_block: Annotated[tuple[str, ...], Setting("render.block")] = _UNSAID
    render_max_requests: Annotated[Annotated[int, msgspec.Meta(ge=0)], Setting("render.max_requests")] = _UNSAID
    render_max_bytes: Annotated[_Count, Setting("render.max_bytes")] = _UNSAID


class JobSpec(msgspec.Struct, omit_defaults=True, frozen=True):
    """All resolved values that decide about a job's URLs: the fold and the dispatcher read no settings of the worker.

    Attributes:
        rev: Revision, counted up with each change; a page names the revision under which it was fetched.
        spider: `FILE.py:Class`, or empty for the default spider.
        args: Arguments of the spider (`-a NAME=VALUE`).
        scrapy: Settings of Scrapy that the command line gave (`-s UPPER=VALUE`).
        starts: Whether the spider's `start` gives requests: the job is not finished before `start` has ended.
        every: Seconds after which the spider's `start` begins again once it has ended; 0 for never.
        fed: Whether the spider is asked for more requests behind its `start`, so that the job does not end by itself.
        pipelines: Whether items pass the spider's pipelines, in a child of the sink, before they are rows.
        max_depth: Deepest link taken; None for no limit.
        max_pages: Pages after which the job stops; None for no limit. Obeyed through `state`, not by counting.
        max_pages_per_domain: URLs queued for one registrable domain, at most; None for no limit.
        max_redirects: Redirects in a row that are followed.
        max_url_length: Longest URL taken, characters; at most 8,192 count.
        order: Order of URLs of one host and priority.
        dedup: How the seen table knows URLs: by whole fingerprints, or by a Bloom filter.
        dedup_error: Rate at which a Bloom filter takes new URLs for known ones.
        fingerprint_headers: Names of headers that tell requests apart, beside URL, method and body.
        state: Only a running job's URLs are fetched; other jobs keep their queues and still queue found URLs.
        reason: Why the state is so, one word or short phrase (`max_pages`, `closespider_itemcount`); empty if plain.
        by: User or program that submitted it, for people; no permission follows from it.
        at: UTC epoch seconds when it was submitted.
        changed_at: UTC epoch seconds of the last order.
        outputs: Outputs that the fleet's sink workers write.
        items: End of each partition of crawl.items when it was submitted: its rows lie behind these offsets. Empty if
            nobody noted them.
        priority: Its share of a worker's requests beside those of other jobs: each step doubles it.
        code: The deployed project whose spider `spider` names; None for a file or an installed module.
        flow: How it is connected with other jobs; None if it is not.
        parse_again: The last order to parse its stored pages again; None if there was none.
        links: Sources of links; see the setting `links.sources`.
        nofollow: Whether links with rel=nofollow are taken.
        meta_robots: Whether `meta` robots and X-Robots-Tag are obeyed.
        token: Our product token, in robots.txt, `meta` robots and X-Robots-Tag.
        max_links: Links of one page that are looked at.
        digest: Of a body in its row; see the setting `results.digest`.
        times: How rows write times; see the setting `results.times`.
        log: Least level of the spider's lines; see the setting `spider.log`.
        full_headers: Whether pages keep all headers of request and response.
        sitemaps: Whether sitemaps that a robots.txt names are followed.
        max_sitemap_bytes: Largest part of one sitemap that is read, decompressed.
        traps: Rules against crawler traps.
        render: Rules for the pages that a browser renders.
        recrawl: When its URLs are due again.
        requests: How its URLs are requested; None for the job of bare records: then the settings of the worker
            decide.
    """

    rev: int = 1
    spider: str = ""
    args: tuple[tuple[str, str], ...] = ()
    scrapy: tuple[tuple[str, str], ...] = ()
    starts: bool = False
    pipelines: bool = False
    fed: bool = False
    every: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    scope: ScopeSpec = ScopeSpec()
    canonical: CanonicalRules = CanonicalRules()
    max_depth: Annotated[int | None, Setting("run.depth")] = None
    max_pages: Annotated[int | None, Setting("run.max_pages")] = None
    max_pages_per_domain: Annotated[int | None, Setting("scope.max_pages_per_domain")] = None
    max_redirects: Annotated[int, Setting("scope.max_redirects")] = 10
    max_url_length: Annotated[int, Setting("scope.max_url_length")] = 2083
    order: Annotated[Literal["fifo", "lifo"], Setting("frontier.order", is_fixed=True)] = "fifo"
    dedup: Annotated[Literal["exact", "bloom"], Setting("dedup.mode", is_fixed=True)] = "exact"
    dedup_error: Annotated[float, msgspec.Meta(ge=1e-5, le=0.1), Setting("dedup.error", is_fixed=True)] = 1e-4
    fingerprint_headers: Annotated[tuple[str, ...], Setting("fingerprint.headers", is_fixed=True)] = ()
    state: JobStateName = "running"
    reason: str = ""
    by: str = ""
    at: float = 0.0
    changed_at: float = 0.0
    outputs: tuple[OutputSpec, ...] = ()
    items: tuple[int, ...] = ()
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = USUAL_PRIORITY
    code: CodeRef | None = None
    flow: JobFlow | None = None
    parse_again: ParseAgain | None = None
    links: Annotated[tuple[str, ...], Setting("links.sources")] = ("a", "area")
    nofollow: Annotated[bool, Setting("links.nofollow", true_if="follow")] = True
    meta_robots: Annotated[bool, Setting("robots.meta", true_if="obey")] = False
    token: Annotated[str, Setting("robots.token")] = "crawlog"  # noqa: S105  # a robots.txt product token
    max_links: Annotated[int, Setting("links.max_per_page")] = 50_000
    digest: Annotated[Literal["sha256", "blake3", "none"], Setting("results.digest")] = "sha256"
    times: Annotated[Literal["epoch", "iso"], Setting("results.times")] = "epoch"
    log: Annotated[Literal["debug", "info", "warning", "error"], Setting("spider.log")] = "info"
    full_headers: Annotated[bool, Setting("pages.headers", true_if="full")] = False
    sitemaps: Annotated[bool, Setting("sitemaps.follow")] = False
    max_sitemap_bytes: Annotated[int, Setting("sitemaps.max_bytes")] = 50 << 20
    traps: TrapRules = TrapRules()
    render: RenderRules = RenderRules()
    recrawl: RecrawlRules = RecrawlRules()
    requests: RequestRules | None = None

    @property
    def recurs(self) -> bool:
        """Whether something will be due again when nothing is left."""
        return self.recrawl.age is not None or self.every > 0

    def home(self, output: int) -> int:
        """The number whose partition, modulo their count, has an output of the job, given by its own number.

        Those of a job with pipelines are in one place, as their items pass one process.
        """
        return 0 if self.pipelines else output


class Rewind(msgspec.Struct, frozen=True):
    """A new epoch begins: its record counts if its epoch is later than the one it meets.

    A record with a job drops all rows of that job in the partition. A record without a job rewinds the whole partition:
    the records at [start, the record's own offset) no longer count, and every job has the new epoch. In both cases
    nothing is fetched for those jobs before their job record of the new epoch. It is written when the epoch record is
    in every partition, so no found of the new epoch is before an epoch record.

    Attributes:
        start: Offset in this partition of the first record that no longer counts; 0 where a job is named.
    """

    start: int = 0


class JobOrder(msgspec.Struct, omit_defaults=True, frozen=True):
    """A change of a job; a record of partition 0 of crawl.urls only.

    The fold takes it if `expects` is the job's revision at that point of the log; its new revision is then the order's
    own offset, or one more than before if that is greater. Else nothing changes.

    Attributes:
        expects: The revision that the writer has read; 0 for a job that does not exist yet.
        state: The new state; None to keep it.
        spec: The new record, whose `rev` is ignored; None to keep it.
        reason: See `JobSpec.reason`; it replaces the old one.
        by: Who ordered it, for people.
        at: UTC epoch seconds when it was ordered.
    """

    expects: int
    state: JobStateName | None = None
    spec: JobSpec | None = None
    reason: str = ""
    by: str = ""
    at: float = 0.0


class UrlsRecord(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True):
    """A record of crawl.urls, of any of the seven kinds.

    Attributes:
        job: Its job; None means the only active job, else `default`.
        epoch: Counted up by each rewind.
        at: UTC epoch seconds when it was made; 0 means the timestamp of the record.
        fwd: Times it was forwarded to the partition it belongs to: 0 or 1.
        joins: Scope names that join the job; their domains belong to this partition.
        dropped: With `urls`: the number of links that parse dropped and did not send, by rule.
        url: A bare found: one URL, with the fields of `FoundUrl` in the record itself, or a plain line; `decode` fills
            `urls` too. Other clients do not know the epoch, so it counts in every epoch.
    """

    job: str | None = None
    epoch: int = 0
    at: float = 0.0
    fwd: int = 0
    urls: list[FoundUrl] | None = None
    dropped: dict[str, int] = {}
    results: list[Result] | None = None
    changes: list[PageChange] | None = None
    spec: JobSpec | None = None
    joins: tuple[str, ...] | None = None
    rewind: Rewind | None = None
    order: JobOrder | None = None
    url: str | None = None
    depth: int = 0
    priority: int = 0
    source: Source = "seed"
    parent: str = ""
    hops: int = 0


# The job of bare records if no job or several jobs are active; scope `host`, built in. Only rewinds of the crawl write
# its record.
DEFAULT_JOB = "default"

DEFAULT_SPEC = JobSpec(rev=0, scope=ScopeSpec(kind="host"))

# Fields that say of which kind a record is: each record has one of them.
_KINDS = ("urls", "results", "changes", "spec", "joins", "rewind", "order", "url")

_parts = attrgetter(*_KINDS)
_decoder = msgspec.json.Decoder(UrlsRecord)
_encoder = msgspec.json.Encoder()


def founds_again(record: UrlsRecord, urls: list[FoundUrl]) -> UrlsRecord:
    """Some founds of a record, to be sent again. A bare record stays bare, since its writer did not know the epoch."""
    return record if record.url is not None else UrlsRecord(record.job, record.epoch, record.at, record.fwd, urls=urls)


def encode(record: UrlsRecord) -> bytes:
    """The record as JSON; a bare one without the `urls` that `decode` filled."""
    return _encoder.encode(record if record.url is None else msgspec.structs.replace(record, urls=None))


def may_delete(value: bytes | None) -> bool:
    """Whether a value may be a record that deletes a job; False without decoding for nearly all others."""
    return value is not None and b'"deleted"' in value and b'"spec"' in value


def decode(value: bytes | None) -> UrlsRecord:
    """The record in a value of crawl.urls.

    Raises: ValueError: not JSON, not a record, of another version, or nothing in it; the message says which.
    """
    if not value:
        raise ValueError("empty value")
    if value[:1] != b"{":
        value = value.removeprefix(codecs.BOM_UTF8).strip()
    record = decoded(_decoder, version_1(value)) if value[:1] == b"{" else UrlsRecord(url=_plain_line(value))
    if _parts(record).count(None) != len(_KINDS) - 1:
        raise ValueError(f"a record has exactly one of {', '.join(_KINDS)}")
    if record.job is None and any(
        part is not None for part in (record.results, record.changes, record.spec, record.joins, record.order)
    ):
        raise ValueError("each done, change, job record, order and record of scope names names its job")
    if record.url is not None:
        record.urls = [FoundUrl(record.url, record.depth, record.priority, record.source, record.parent, record.hops)]
    if record.rewind is not None:
        _check_rewind(record, record.rewind)
    if record.urls is not None:
        _check_requests(record.urls)
    return record


def _check_requests(founds: list[FoundUrl]) -> None:
    for found in founds:
        if found.id:
            check_identity(found.id)
        if found.request is not None:
            found.request.check()


def _check_rewind(record: UrlsRecord, rewind: Rewind) -> None:
    if not 1 <= record.epoch <= MAX_EPOCH:
        raise ValueError(f"a rewind begins an epoch in 1..{MAX_EPOCH}, not {record.epoch}")
    if rewind.start < 0 or (record.job is not None and rewind.start):
        raise ValueError(f"a rewind of {record.job or 'the crawl'} cannot start at offset {rewind.start}")


def _plain_line(line: bytes) -> str:
    if not line.lower().startswith((b"http://", b"https://")):
        raise ValueError("neither a JSON object nor one http(s) URL")
    if len(line.split()) > 1:
        raise ValueError("more than one URL without blanks; depth and priority need JSON")
    return line.decode()
