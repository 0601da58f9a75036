"""A request for a job, as a user or a program describes it; its default name; checks that need no log.

POST /api/v1/jobs, schedule.json ─► JobRequest ─────────────┬─► submit.py ─► Wanted ─► writer.py ─► the log
run, crawl(), submit ─────────────► JobRequest, LocalParts ─┘
"""

import heapq
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec
import xxhash

from crawlog.agents.seed import Seed
from crawlog.schemas.job_orders import GROUP, NO_FLOW, JobFlow, is_plain
from crawlog.schemas.urls import DEFAULT_JOB
from crawlog.streams.errors import Misconfigured
from crawlog.streams.files import is_utf_8
from crawlog.streams.job_spec import job_keys
from crawlog.streams.requests import literal_refusal, without_login
from crawlog.streams.settings import SHORT, known_keys, suggestion
from crawlog.streams.url import InvalidUrl, serialise

if TYPE_CHECKING:
    from crawlog.streams.spiders import SpiderFacts

# Job names are parts of keys (`JOB URL`, `job/NAME`) and of file names.
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

TOLD = 3  # Refused seeds that are named at most

CHUNK = 200_000  # Seeds whose name is made in memory, some 40 MB

MAX_URLS = 10_000  # URLs of one submission; more come by `--seeds FILE` or `crawlog seed`

# Value of a setting: as in a configuration file, or the text of `-s`.
Value = str | int | float | bool | None | list[str | int]

_LINE = msgspec.json.Decoder(str)

_OPENS = "; -s network.allow_private=true has it asked, with --fresh once the job has refused it"

OF_SCRAPY = re.compile(r"[A-Z][A-Z0-9_]*")  # Names of Scrapy's settings


FLOW = "--after, --after-any, --group, --feed or --on-finish"  # The options of `JobRequest.flow`


class JobRequest(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a job, from anyone who may submit: it reads no file of the machine that receives it.

    Attributes:
        urls: Seeds; without them the spider's `start` or `start_urls`.
        requests: More seeds, each with the fields of a JSON line of `crawlog seed`.
        spider: Name of a spider in the project; empty for the default spider.
        project, version: Deployed code; without a version the newest one.
        args: Arguments of the spider.
        settings: Of the job by dotted name, and Scrapy's by their own names.
        outputs: Plain names of files, or names of declared outputs.
        job: Its name; empty to make one of seeds and spider, so that the same submission is the same job.
        depth: Deepest link taken.
        priority: Its share beside other jobs: each step doubles it. None for the usual one, or that of a known job.
        paused: Whether it waits for `resume`.
        fresh: Whether a known job begins again from its seeds, in a new epoch.
        after: Jobs, or groups (`group:NAME`), that end before it runs.
        after_any: Whether it runs however they end; else it fails if one is cancelled, fails or is deleted.
        group: Group that it belongs to.
        feed: `JOB:FIELD`: URLs in this field of the rows of another job are its seeds, as they come.
        on_finish: What is called at its end: URLs, and names of targets that the workers' settings declare.
        is_new: Whether a known name is an error; else a known job goes on, and gets the seeds.
    """

    urls: tuple[str, ...] = ()
    requests: tuple[Seed, ...] = ()
    spider: str = ""
    project: str = ""
    version: str = ""
    args: dict[str, str] = {}
    settings: dict[str, Value] = {}
    outputs: tuple[str, ...] = ()
    job: str = ""
    max_pages: Annotated[int, msgspec.Meta(ge=1)] | None = None
    depth: Annotated[int, msgspec.Meta(ge=0)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None
    paused: bool = False
    fresh: bool = False
    after: tuple[str, ...] = ()
    after_any: bool = False
    group: str = ""
    feed: tuple[str, ...] = ()
    on_finish: tuple[str, ...] = ()
    is_new: bool = False

    @property
    def scrapy(self) -> tuple[tuple[str, str], ...]:
        """Scrapy's settings."""
        named = ((key, value) for key, value in self.settings.items() if OF_SCRAPY.fullmatch(key))
        return tuple(sorted((key, text_of(value)) for key, value in named))

    @property
    def own(self) -> dict[str, Value]:
        """The settings of crawlog's."""
        return {key: value for key, value in self.settings.items() if not OF_SCRAPY.fullmatch(key)}

    @property
    def flow(self) -> JobFlow | None:
        """How the job is connected with others; None if it is not."""
        given = (tuple(dict.fromkeys(one)) for one in (self.after, self.feed, self.on_finish))
        after, feeds, on_finish = given
        flow = JobFlow(after, self.after_any, self.group, feeds, on_finish)
        return flow if flow != NO_FLOW else None

    @property
    def given(self) -> set[str]:
        """The options and settings that the request sets, as `record.plan` names them."""
        options = {
            "--spider": self.spider,
            "-a": self.args,
            "-o": self.outputs,
            "--version": self.project,
            "-s of Scrapy": self.scrapy,
            "--priority": self.priority is not None,
            FLOW: self.flow,
            "run.depth": self.depth is not None,
            "run.max_pages": self.max_pages,
        }
        return {SHORT.get(key, key) for key in self.own} | {name for name, value in options.items() if value}


class LocalParts(NamedTuple):
    """What a command of this machine adds to a request: its files.

    Attributes:
        seeds: All seeds in place of `urls`: URLs, `sitemap:URL`, files, `-` for standard input.
        facts: Of its spider, in place of `spider`; None for the default spider, and for deployed code.
    """

    seeds: tuple[str, ...] = ()
    facts: "SpiderFacts | None" = None


NO_PARTS = LocalParts()


def text_of(value: Value) -> str:
    """The value of a setting as `-s` takes it."""
    if isinstance(value, str):
        return value
    return "none" if value is None else json.dumps(value)


def checked(wanted: JobRequest) -> JobRequest:
    """The submission, if all that needs no log is valid in it.

    Raises: Misconfigured: it is not; the message says what is wrong.
    """
    if wanted.job:
        _check_job(wanted.job)
    count = len(wanted.urls) + len(wanted.requests)
    if count > MAX_URLS:
        raise Misconfigured(f"{count:,} URLs; at most {MAX_URLS:,}: `crawlog seed FILE --job NAME` adds more")
    for url in (*wanted.urls, *(one.url for one in wanted.requests)):
        _check_url(url)
    for one in wanted.requests:
        try:
            one.found(serialise, ())
        except ValueError as error:
            raise Misconfigured(f"the request of {one.url!r:.200}: {error}") from None
    _check_arguments(wanted.args)
    _check_flow(wanted)
    if wanted.version and not wanted.project:
        raise Misconfigured("--version: name the project, too (--project)")
    if wanted.project and not wanted.spider:
        raise Misconfigured(f"--project {wanted.project}: name one of its spiders, too (--spider)")
    check_settings(wanted)
    return wanted


def check_settings(wanted: JobRequest) -> None:
    """Raises: Misconfigured: a setting that no job has, or that no record may bring."""
    _check_remote(wanted)
    _check_of_job(wanted.own)


def _check_job(name: str) -> None:
    if named_job(name) == DEFAULT_JOB:
        raise Misconfigured(f"--job {name}: this name is for URLs that other programs write; take another one")


def named_job(name: str) -> str:
    """The name, if it is valid. Raises: Misconfigured: it is not."""
    return _check_name("--job", name)


def _check_name(option: str, name: str) -> str:
    if not JOB_NAME.fullmatch(name):
        raise Misconfigured(
            f"{option} {name!r:.120}: a job's name is 1 to 100 letters, digits, dots, dashes or underscores,"
            " and starts with a letter or digit"
        )
    return name


def _check_flow(wanted: JobRequest) -> None:
    """Raises: Misconfigured: a name is invalid, or the job would wait for two things."""
    for name in wanted.after:
        _check_name("--after", name.removeprefix(GROUP))
    for feed in wanted.feed:
        job, _, field = feed.partition(":")
        if not field:
            raise Misconfigured(f"--feed {feed!r:.120}: JOB:FIELD, a job and the field of its rows that has the URLs")
        _check_name("--feed", job)
    for target in wanted.on_finish:
        check_target(target)
    if wanted.group:
        _check_name("--group", wanted.group)
    if wanted.after_any and not wanted.after:
        raise Misconfigured("--after-any: name the jobs, too (--after JOB)")
    if wanted.after and wanted.paused:
        raise Misconfigured("--paused and --after: a job waits for a command or for other jobs; give one of them")


def check_target(target: str) -> None:
    """Raises: Misconfigured: it is neither the URL of a webhook nor the name of a declared target."""
    if "://" in target:
        _check_url(target)
        if not target.lower().startswith(("http://", "https://")):
            raise Misconfigured(f"--on-finish {target!r:.200}: a webhook is http://… or https://…")
    elif not is_plain(target):
        raise Misconfigured(
            f"--on-finish {target!r:.200}: a URL, or the name of a target. A command is declared where the workers run"
            ' ([hooks] targets = { mail = "…" } in a file of --config), and named here (--on-finish mail)'
        )


def _check_arguments(names: Iterable[str]) -> None:
    from crawlog.commands.named_spider import is_argument

    for name in names:
        if not is_argument(name):
            raise Misconfigured(f"-a {name!r:.100}: an argument of a spider is NAME=VALUE, such as -a section=books")


def _check_url(url: str) -> None:
    if not is_utf_8(url):
        raise Misconfigured(f"{url!r:.200} is not UTF-8; write such bytes as %FF")
    try:
        plain = serialise(url)
    except (InvalidUrl, ValueError):
        raise Misconfigured(f"{url!r:.200} is not a URL that can be fetched: http://… or https://…") from None
    if "@" in url and without_login(plain)[1]:
        raise Misconfigured(
            f"{without_login(plain)[0]!r:.200}: a login is of the workers, and no record holds one:"
            " give them fetch.logins, and the URL without it"
        )


def _check_remote(wanted: JobRequest) -> None:
    """Raises: Misconfigured: a setting of Scrapy's that may only come from the project's own settings."""
    from crawlog.streams.spiders import wire_refusal

    if wanted.scrapy and not wanted.spider:
        raise Misconfigured(f"-s {wanted.scrapy[0][0]}: a setting of Scrapy's; give --spider, too")
    if refused := [why for name, value in wanted.scrapy if (why := wire_refusal(name, value))]:
        raise Misconfigured("\n".join(refused))


def _check_of_job(own: Mapping[str, Value]) -> None:
    """Raises: Misconfigured: a setting that no job has."""
    keys = [SHORT.get(key, key) for key in own]
    if unknown := [f"unknown setting {key!r:.100}; {suggestion(key)}" for key in keys if not _is_known(key)]:
        raise Misconfigured("\n".join(unknown))
    if others := of_workers(own):
        raise Misconfigured(
            f"-s {', '.join(others)}: of workers, not of a job, so it has no effect here; give it to"
            " `crawlog up` or `crawlog worker`"
        )


def of_workers(keys: Iterable[str]) -> list[str]:
    """The settings among these that workers and commands have, and no job."""
    return sorted({SHORT.get(key, key) for key in keys} & (known_keys().keys() - job_keys()))


def _is_known(key: str) -> bool:
    return key in known_keys()


def job_name(seeds: Iterable[str], spider: str = "", args: Iterable[tuple[str, str]] = ()) -> str:
    """The default name of a job: equal seeds in any order, with the same spider and arguments."""
    digest = xxhash.xxh3_64()
    with ExitStack() as files:
        for seed in _sorted_once((seed.strip() for seed in seeds), files):
            digest.update(f"{seed}\n".encode())
    rest = [spider, *(f"{name}={value}" for name, value in sorted(args))]
    digest.update("\n".join(rest).encode())
    return "job-" + digest.hexdigest()[:10]


def _sorted_once(lines: Iterable[str], files: ExitStack) -> Iterator[str]:
    """The different lines, sorted. Beyond `CHUNK` they lie in temporary files, which `files` closes."""
    chunks: list[Iterable[str]] = []
    lines = iter(lines)
    while chunk := list(islice(lines, CHUNK)):
        own = sorted(set(chunk))
        if len(chunk) == CHUNK:
            file = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
            file.writelines(msgspec.json.encode(line) + b"\n" for line in own)  # a line may hold any character
            file.seek(0)
            chunks.append(map(_LINE.decode, file))
        else:
            chunks.append(own)
    return (line for line, _ in groupby(heapq.merge(*chunks)))


def refused(seeds: Sequence[str], *, allow_private: bool) -> list[str]:
    """Lines about seeds that are refused by their host name alone, with the setting that allows them, if any."""
    told: dict[str, str] = {}
    for seed in seeds:
        try:
            host = urlsplit(serialise(seed)).hostname or ""
        except ValueError:
            continue  # no URL: it is told as a bad line
        reason = literal_refusal(host, allow_private)
        if reason is not None:
            is_open = literal_refusal(host, allow_private=True) is None
            told[host] = f"{seed} is not asked: {reason}" + (_OPENS * is_open)
    return list(told.values())[:TOLD]
