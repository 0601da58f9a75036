"""`crawlog jobs update`: another version of a job's code, other settings, and its stored pages parsed again.

JobUpdate ─► the job's record with them ─► order (`changes.change_spec`) ─► holds for pages not yet parsed
"""

from functools import cache, partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from crawlog.schemas.control import JobCopy
from crawlog.schemas.job_orders import PIPELINES_ALONE, ParseAgain
from crawlog.streams.cluster import Admin, log_bounds
from crawlog.streams.errors import InvalidState, Misconfigured
from crawlog.streams.groups import offsets_at
from crawlog.streams.job_spec import kept_for_life, with_settings
from crawlog.streams.jobs import traits
from crawlog.streams.log import Topics, partition_count
from crawlog.streams.settings import NO_FILE, Sources, resolve

from .changes import change_spec
from .record import BROKEN, is_full, way_on
from .request import JobRequest, Value, check_settings, text_of
from .submit import code_of, deployed_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from crawlog.schemas.urls import JobSpec
    from crawlog.streams.fleet import JobView
    from crawlog.streams.settings import Settings

CLOCKS_S = 600.0  # How far a submitter's clock may be ahead of a fetch worker's, seconds

UPDATED = "it was updated"  # Reason of a finished job that runs again

_GIVEN = object()


class JobUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What changes in a job.

    Attributes:
        version: Of its project, in place of the version that it has.
        settings: As in a submission: of the job by dotted name, and Scrapy's by their own names.
        parse_again: Whether its stored pages are parsed again, too.
    """

    version: str = ""
    settings: dict[str, Value] = {}
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None
    parse_again: bool = False


def update_job(
    settings: "Settings",
    name: str,
    update: JobUpdate,
    by: str = "",
    *,
    say: "Callable[[str], None]" = lambda _: None,
) -> "JobView":
    """Changes a job's code, settings or priority. Nothing is fetched again.

    Args:
        say: Takes lines for the user.

    Raises:
        UnknownName: there is no such job.
        InvalidState: it is cancelled, or has nothing to go on with.
        Misconfigured: nothing is to change, or the job cannot have it.
        EngineError: no worker answers.
    """
    if update == JobUpdate():
        raise Misconfigured(
            f"nothing to change: `crawlog jobs update {name} --version V`, -s, --priority, --parse-again"
        )
    ranges = cache(partial(_stored, settings))  # by the job's time: asked for once in all tries

    def updated(spec: "JobSpec") -> "JobSpec":
        spec = _updated(settings, JobCopy(name, spec), update, say)
        if not update.parse_again:
            return spec
        if not traits(spec.state).outputs:
            raise InvalidState(
                f"--parse-again: job {name} is {spec.state}, and has no outputs; {way_on(JobCopy(name, spec))}"
            )
        number = 1 + (spec.parse_again.number if spec.parse_again is not None else 0)
        return msgspec.structs.replace(spec, parse_again=ParseAgain(number, *ranges(spec.at)))

    return change_spec(settings, name, updated, UPDATED, by)


def _stored(settings: "Settings", at: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranges of crawl.pages, by partition, that may have pages of a job that was submitted at a time."""
    admin, topic = Admin(settings), Topics(settings.kafka.prefix).pages
    bounds = log_bounds(settings, topic, list(range(partition_count(settings))))
    first = offsets_at(admin, topic, bounds, int((at - CLOCKS_S) * 1000))
    ranges = [
        (min(max(start, first[number]), end) if first[number] >= 0 else end, end)
        for number, (start, end) in sorted(bounds.items())
    ]
    return tuple(start for start, _ in ranges), tuple(end for _, end in ranges)


def _updated(settings: "Settings", copy: JobCopy, update: JobUpdate, say: "Callable[[str], None]") -> "JobSpec":
    name, before = copy.job, copy.spec
    if before.state == "cancelled":
        raise InvalidState(f"job {name} is cancelled for good; `--fresh` of `run` or `submit` begins it again")
    if before.reason == BROKEN:
        raise InvalidState(f"job {name} has nothing to go on with: its spider could not be made. {way_on(copy)}")
    given = JobRequest(spider=before.spider, settings=update.settings)
    check_settings(given)
    spec = _with_code(settings, copy, update, given, say)
    spec = _with_values(spec, given.own)
    if update.priority is not None:
        spec = msgspec.structs.replace(spec, priority=update.priority)
    if kept := kept_for_life(before, spec):
        raise Misconfigured(
            f"-s {', '.join(kept)}: job {name} keeps {'them' if len(kept) > 1 else 'it'}, since what is stored of its"
            " URLs depends on that; `--fresh` of `run` or `submit` begins the job again with other ones"
        )
    if is_full(before) and (spec.max_pages is None or spec.max_pages > (before.max_pages or 0)):
        spec = msgspec.structs.replace(spec, state="running", reason="")
    return spec


def _with_values(spec: "JobSpec", values: "Mapping[str, Value]") -> "JobSpec":
    """The record with values of settings. Raises: Misconfigured: a value is wrong."""
    resolved = resolve(
        Sources(pairs=[f"{key}={text_of(one)}" for key, one in values.items()], config=NO_FILE, environ={})
    )
    return with_settings(spec, resolved.settings, resolved.set_by)


def _with_code(
    settings: "Settings", copy: JobCopy, update: JobUpdate, given: JobRequest, say: "Callable[[str], None]"
) -> "JobSpec":
    """The record with another version, or with other settings of Scrapy's, and with what its spider sets otherwise.

    Settings of the spider that both versions have alike stay as the job has them: `-s` may have changed them.
    """
    before = copy.spec
    if not (update.version or given.scrapy):
        return before
    if before.code is None:
        what = "--version" if update.version else f"-s {given.scrapy[0][0]}"
        raise Misconfigured(
            f"{what}: the code of job {copy.job} is not deployed; the same `crawlog run … --job {copy.job}` takes its"
            " file anew"
        )
    code = before.code
    if update.version:
        code = code_of(settings, JobRequest(spider=before.spider, project=code.project, version=update.version)) or code
    spec = msgspec.structs.replace(
        before, code=code, scrapy=tuple(sorted({**dict(before.scrapy), **dict(given.scrapy)}.items()))
    )
    if spec == before:
        return before
    facts = deployed_facts(settings, _request_of(spec), code)
    assert facts is not None
    try:
        former = deployed_facts(settings, _request_of(before), before.code)
    except Misconfigured as error:
        say(f"settings of the spider stay as the job has them, for its former code cannot be loaded: {error}")
        former = facts
    assert former is not None
    old, new = former.settings, facts.settings
    keys = {key for key in (*old, *new) if old.get(key, _GIVEN) != new.get(key, _GIVEN)}
    spec = with_settings(
        spec,
        resolve(Sources(spider={key: new[key] for key in keys & new.keys()}, config=NO_FILE, environ={})).settings,
        keys,
    )
    outputs = spec.outputs or ((PIPELINES_ALONE,) if facts.has_pipelines else ())
    return msgspec.structs.replace(spec, pipelines=facts.has_pipelines, outputs=outputs)


def _request_of(spec: "JobSpec") -> JobRequest:
    return JobRequest(spider=spec.spider, args=dict(spec.args), settings=dict(spec.scrapy))
