"""A submission: a job for a fleet, as a user or a program describes it. Checks what needs no log.

crawlog submit, POST /api/v1/jobs, schedule.json ─► Submission ─► `checked` ─► submit.py ─► the job's record
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec

from crawlog.schemas.job_orders import PIPELINES_ALONE, OutputSpec
from crawlog.schemas.urls import DEFAULT_JOB, MAX_PRIORITY
from crawlog.streams.errors import Misconfigured

if TYPE_CHECKING:
    from crawlog.schemas.urls import JobSpec
    from crawlog.streams.settings import Settings

# Job names are parts of keys (`JOB URL`, `job/NAME`) and of file names.
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

MAX_URLS = 10_000  # URLs of one submission; more come by `--seeds FILE` or `crawlog seed`

# Value of a setting: as in a configuration file, or the text of `-s`.
Value = str | int | float | bool | None | list[str | int]

OF_SCRAPY = re.compile(r"[A-Z][A-Z0-9_]*")  # Names of Scrapy's settings

# Fields of a job's record in which two submissions of one job may differ; its scope's names are those of its seeds.
_OWN = ("rev", "state", "reason", "by", "at", "changed_at", "items")

# Options that fields of a job's record are made of; most others are made of settings.
_OPTIONS = {
    "spider": "--spider",
    "args": "-a",
    "outputs": "-o",
    "code": "--version",
    "scrapy": "-s of Scrapy",
    "priority": "--priority",
}


class Submission(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job for a fleet.

    Attributes:
        urls: Seeds; without them the spider's `start` or `start_urls`.
        spider: Name of a spider in the project; empty for the default spider.
        project, version: Deployed code; without a version the newest one.
        args: Arguments of the spider.
        settings: Of the job by dotted name, and Scrapy's by their own names.
        outputs: Plain names of files, or names of declared outputs.
        job: Its name; empty to make one of seeds and spider, so that the same submission is the same job.
        depth: Deepest link taken.
        priority: Of its seeds, and added to that of each request of its spider's `start`; higher is fetched first.
        paused: Whether it waits for `resume`.
        fresh: Whether a known job begins again from its seeds, in a new epoch.
        is_new: Whether a known name is an error; else a known job goes on, and gets the seeds.
    """

    urls: tuple[str, ...] = ()
    spider: str = ""
    project: str = ""
    version: str = ""
    args: dict[str, str] = {}
    settings: dict[str, Value] = {}
    outputs: tuple[str, ...] = ()
    job: str = ""
    max_pages: Annotated[int, msgspec.Meta(ge=1)] | None = None
    depth: Annotated[int, msgspec.Meta(ge=0)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY - 1, le=MAX_PRIORITY)] = 0
    paused: bool = False
    fresh: bool = False
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
    def given(self) -> set[str]:
        """What it gives itself, in the words of `differences`."""
        from crawlog.streams.settings import SHORT

        options = {
            "--spider": self.spider,
            "-a": self.args,
            "-o": self.outputs,
            "--version": self.project,
            "-s of Scrapy": self.scrapy,
            "--priority": self.priority,
            "run.depth": self.depth is not None,
            "run.max_pages": self.max_pages,
        }
        return {SHORT.get(key, key) for key in self.own} | {name for name, value in options.items() if value}


def text_of(value: Value) -> str:
    """The value of a setting as `-s` takes it."""
    if isinstance(value, str):
        return value
    return "none" if value is None else json.dumps(value)


def checked(wanted: Submission) -> Submission:
    """The submission, if all that needs no log is valid in it.

    Raises: Misconfigured: it is not; the message says what is wrong.
    """
    if wanted.job:
        _check_job(wanted.job)
    if len(wanted.urls) > MAX_URLS:
        raise Misconfigured(
            f"{len(wanted.urls):,} URLs; at most {MAX_URLS:,}: `crawlog seed FILE --job NAME` adds more"
        )
    for url in wanted.urls:
        _check_url(url)
    _check_arguments(wanted.args)
    _check_priority(wanted.priority)
    if wanted.version and not wanted.project:
        raise Misconfigured("--version: name the project, too (--project)")
    if wanted.project and not wanted.spider:
        raise Misconfigured(f"--project {wanted.project}: name one of its spiders, too (--spider)")
    _check_remote(wanted)
    _check_of_job(wanted.own)
    return wanted


def _check_job(name: str) -> None:
    if named_job(name) == DEFAULT_JOB:
        raise Misconfigured(f"--job {name}: this name is for URLs that other programs write; take another one")


def named_job(name: str) -> str:
    """The name, if it is valid. Raises: Misconfigured: it is not."""
    if not JOB_NAME.fullmatch(name):
        raise Misconfigured(
            f"--job {name!r:.120}: a job's name is 1 to 100 letters, digits, dots, dashes or underscores,"
            " and starts with a letter or digit"
        )
    return name


def _check_arguments(names: Iterable[str]) -> None:
    from crawlog.commands.named_spider import is_argument

    for name in names:
        if not is_argument(name):
            raise Misconfigured(f"-a {name!r:.100}: an argument of a spider is NAME=VALUE, such as -a section=books")


def _check_priority(priority: int) -> None:
    """Raises: Misconfigured: no record can hold it."""
    if not -MAX_PRIORITY - 1 <= priority <= MAX_PRIORITY:
        raise Misconfigured(f"--priority {priority}: from {-MAX_PRIORITY - 1} to {MAX_PRIORITY}")


def _check_url(url: str) -> None:
    from crawlog.streams.files import is_utf_8
    from crawlog.streams.http import without_login
    from crawlog.streams.url import InvalidUrl, serialise

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


def _check_remote(wanted: Submission) -> None:
    """Raises: Misconfigured: a setting of Scrapy's that may only come from the project's own settings."""
    from crawlog.streams.spiders import wire_refusal

    if wanted.scrapy and not wanted.spider:
        raise Misconfigured(f"-s {wanted.scrapy[0][0]}: a setting of Scrapy's; give --spider, too")
    if refused := [why for name, value in wanted.scrapy if (why := wire_refusal(name, value))]:
        raise Misconfigured("\n".join(refused))


def _check_of_job(own: Mapping[str, Value]) -> None:
    """Raises: Misconfigured: a setting that no job has."""
    from crawlog.streams.settings import SHORT, suggestion

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
    from crawlog.streams.job_spec import job_keys
    from crawlog.streams.settings import SHORT, known_keys

    return sorted({SHORT.get(key, key) for key in keys} & (known_keys().keys() - job_keys()))


def _is_known(key: str) -> bool:
    from crawlog.streams.settings import known_keys

    return key in known_keys()


def outputs_of(settings: "Settings", names: Iterable[str], *, pipelines: bool = False) -> tuple[OutputSpec, ...]:
    """The outputs of these names, without doubles; without names the built-in one of a job with pipelines.

    Raises: Misconfigured: a name is a path or an address, or has a suffix that no format has.
    """
    outputs = tuple(_output(settings, name) for name in dict.fromkeys(names))
    return outputs or ((PIPELINES_ALONE,) if pipelines else ())


def is_full(spec: "JobSpec") -> bool:
    """Whether a job was stopped at its limit of pages: with that limit it would stop again."""
    return (spec.state, spec.reason) == ("stopped", "max_pages") and spec.max_pages is not None


def grown(known: "JobSpec", wanted: "JobSpec") -> "JobSpec":
    """The record of a known job, with what a submission adds to it: a larger limit of pages, the pipelines' output."""
    if not known.outputs and wanted.outputs == (PIPELINES_ALONE,):  # `run` made it, whose sink is its own
        known = msgspec.structs.replace(known, outputs=wanted.outputs)
    if known.max_pages is not None and (wanted.max_pages or 0) > known.max_pages:
        known = msgspec.structs.replace(known, max_pages=wanted.max_pages)
    return known


def differences(known: "JobSpec", spec: "JobSpec", wanted: Submission | None = None) -> list[str]:
    """In what two submissions differ that one job cannot have: options, and settings by their dotted names.

    Args:
        wanted: The second one, if it has no requests: only what it gives counts, for the job keeps the rest.
    """
    from crawlog.streams.job_spec import job_values

    known = msgspec.structs.replace(known, scope=msgspec.structs.replace(known.scope, names=spec.scope.names))
    fields = [one for one in spec.__struct_fields__ if one not in _OWN and getattr(known, one) != getattr(spec, one)]
    before, after = job_values(known), job_values(spec)
    keys = [key for key in after if (fields or wanted) and before.get(key) != after[key]]
    found = [_OPTIONS[one] for one in fields if one in _OPTIONS] + keys or fields
    return found if wanted is None else [one for one in found if one in wanted.given]


def _output(settings: "Settings", name: str) -> OutputSpec:
    from crawlog.streams.sink import is_file

    sink = settings.sink
    try:
        if name in sink.outputs:
            return OutputSpec(name, declared=True, required=name not in sink.optional).check()
        spec = OutputSpec(name).check()
    except ValueError as error:
        raise Misconfigured(
            f"-o {name!r:.200}: outputs of a fleet are plain names or declared in [sink] outputs: {error}.\n"
            "`crawlog export --job NAME -o FILE` writes a job's rows to any file of this machine."
        ) from None
    try:
        is_file(name)
    except Misconfigured as error:
        if "." in name:  # meant as a file: an output that nobody declares would hold up the job for ever
            raise Misconfigured(f"{error}\nOutputs that only the workers declare have names without a dot.") from None
        return OutputSpec(name, declared=True, required=name not in sink.optional)
    return spec
