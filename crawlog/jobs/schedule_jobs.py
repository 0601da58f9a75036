"""The jobs of a schedule's runs, resolved as `submit` resolves one: spider, settings, record, seeds.

ScheduleRequest ─► Submission ─► a JobRequest for each spider ─► facts, settings ─► RunJob
"""

import re
from collections.abc import Callable
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import xxhash

from crawlog.schemas.control import JobCopy
from crawlog.schemas.schedules import JobSchedule, RunJob
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.job_spec import job_keys
from crawlog.streams.settings import (
    NO_FILE,
    Settings,
    Sources,
    as_text,
    environ_name,
    is_secret,
    resolve,
    to_environ,
    values,
)

from .request import NO_PARTS, JobRequest
from .submit import code_of, deployed_facts, job_settings, wanted_of

_PATTERN = re.compile(r"[*?\[]")


class Submission(msgspec.Struct, omit_defaults=True):
    """What `JobSchedule.request` holds."""

    submit: JobRequest
    sitemaps: tuple[str, ...] = ()


def submission_of(one: JobSchedule) -> Submission:
    try:
        return msgspec.convert(one.request, Submission)
    except msgspec.ValidationError:  # anybody may have written it
        return Submission(JobRequest())


def run_jobs(settings: Settings, schedule: JobSchedule, say: Callable[[str], None]) -> tuple[RunJob, ...]:
    """The jobs of each run. Raises: Misconfigured: a spider cannot be loaded, or there is nothing to crawl."""
    submission = submission_of(schedule)
    request = submission.submit
    if not _PATTERN.search(request.spider):
        return (_job(settings, request, submission.sitemaps, "", say),)
    from crawlog.commands.projects import list_spiders

    known = list_spiders(settings, request.project, request.version or None) if request.project else []
    spiders = [one for one in known if fnmatchcase(one, request.spider)]
    if not spiders:
        has = ", ".join(known[:20]) or "none"
        raise Misconfigured(f"no spider of project {request.project} fits {request.spider!r:.100}; it has {has}")
    return tuple(
        _job(settings, msgspec.structs.replace(request, spider=one), submission.sitemaps, _suffix(one), say)
        for one in spiders
    )


def _suffix(spider: str) -> str:
    """A spider's name as the end of a job's name."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", spider)
    return plain if plain == spider and len(plain) <= 30 else f"{plain[:21]}-{xxhash.xxh32_hexdigest(spider.encode())}"


def _job(
    settings: Settings, request: JobRequest, sitemaps: tuple[str, ...], suffix: str, say: Callable[[str], None]
) -> RunJob:
    code = code_of(settings, request)
    facts = deployed_facts(settings, request, code)
    settings = job_settings(settings, request, facts)
    with ExitStack() as opened:
        wanted = wanted_of(settings, request, NO_PARTS._replace(facts=facts), say, opened, code=code)
        at_epoch = JobCopy(wanted.name, JobSpec())  # `%(time)s` in the name of an output is that of the run
        spec = msgspec.structs.replace(wanted.spec(settings, at_epoch, say), at=0.0, changed_at=0.0)
    if sitemaps:
        spec = msgspec.structs.replace(spec, starts=False, fed=False)
    if not (wanted.has_requests or sitemaps):
        raise Misconfigured("nothing to crawl: give a URL, or a spider that has some\nSee `crawlog submit --help`.")
    seeds = (*wanted.urls, *(f"sitemap:{url}" for url in sitemaps))
    return RunJob(spec, suffix, seeds)


def base_of(settings: Settings) -> dict[str, Any]:
    """The settings of jobs that differ from the defaults, as text; secrets are the workers'."""
    plain = values(Settings())
    return {
        key: as_text(value)
        for key, value in values(settings).items()
        if key in job_keys() and value != plain[key] and not is_secret(key)
    }


def with_base(settings: Settings, base: dict[str, Any]) -> Settings:
    """These settings with those of a schedule's submitter in place of the settings of jobs."""
    others = {environ_name(key) for key in job_keys() if not is_secret(key)}
    environ = {name: text for name, text in to_environ(settings).items() if name not in others}
    own = {environ_name(key): str(text) for key, text in base.items()}
    return resolve(Sources(config=NO_FILE, environ=environ | own)).settings
