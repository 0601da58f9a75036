"""Scrapyd's own API over HTTP, so that `scrapyd-client`, `python-scrapyd-api` and ScrapydWeb work unchanged.

request ─► arguments (scrapyd_words) ─► endpoint (ENDPOINTS) ─► fleet (scrapyd_fleet) ─► JSON, a line

Names, order of keys and messages are Scrapyd's (1.6). An error is status 200 with `"status": "error"`, as there: its
clients read the message.
"""

import io
import json
import re
import uuid
import zipfile
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from itertools import islice
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import structlog
from aiohttp import web
from packaging.version import InvalidVersion, Version

from crawlog.jobs.request import JobRequest
from crawlog.schemas.urls import USUAL_PRIORITY
from crawlog.streams.errors import CrawlError

from .routing import BODY_BYTES, UPLOAD_BYTES, Handler, Role, TooMuchWork, add, prefix_of, user_of
from .scrapyd_fleet import ScrapydFleet, ScrapydJob, local_time
from .scrapyd_words import Arguments, ScrapydError, arguments_of

FINISHED_SHOWN = 1_000  # Finished jobs that are listed, the last ones; Scrapyd keeps 100

_INNER_ARGS = frozenset({"_job", "_version"})  # Arguments that Scrapyd gives to each spider by itself

_PROJECT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,127}")
_ALLOWED = "it takes 1 to 128 letters, digits and _.+!-, and begins with a letter, a digit or an underscore"
_NOT_OF_A_VERSION = re.compile(r"[^A-Za-z0-9_.+!-]|^[.+!-]")
_NOT_OF_A_LISTED_VERSION = re.compile(r"[^A-Za-z0-9_-]")

Answer = dict[str, Any]


class Caller(NamedTuple):
    """A request: who asks, and with which parameters."""

    fleet: ScrapydFleet
    given: Arguments
    user: str = ""


# ------------------------------------------------------------------ jobs


async def daemonstatus(caller: Caller) -> Answer:
    """How many jobs there are by state."""
    stands = [job.stand for job in await caller.fleet.jobs()]
    return {name: stands.count(name) for name in ("pending", "running", "finished")}


async def schedule(caller: Caller) -> Answer:
    """Submits a job."""
    given = caller.given
    project, spider = given.text("project"), given.text("spider")
    version = given.optional("_version") or None
    job = given.optional("jobid") or uuid.uuid1().hex
    priority = given.number("priority", 0.0)
    settings = dict(_setting(one) for one in given.texts("setting"))
    found, spiders = await _version(caller, project, version)
    if spider not in spiders:
        raise ScrapydError(f"spider '{spider}' not found")
    if "/" in job or "\0" in job or job in {".", ".."}:
        raise ScrapydError(f"DirectoryTraversalError: {project}/{spider}/{job}")
    inner = {"_job": job} | ({"_version": version} if version else {})
    wanted = JobRequest(
        spider=spider,
        project=project,
        version=found,
        args=given.rest() | inner,
        settings=dict(settings),
        job=job,
        priority=int(max(0, min(USUAL_PRIORITY + priority, 9))),  # 0 is usual there
        is_new=True,
    )
    await caller.fleet.submit(wanted, caller.user)
    return {"jobid": job}


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ScrapydError(f"setting is invalid: '{text}' has no '='")
    return name, value


async def cancel(caller: Caller) -> Answer:
    """Cancels a job. Its signal is read and not used: a job has no process of its own."""
    project, name = caller.given.text("project"), caller.given.text("job")
    caller.given.optional("signal")
    await _known(caller, project)
    job = await _job_of(caller, project, name)
    if job is None or job.stand == "finished":
        return {"prevstate": None}
    await caller.fleet.cancel(name, caller.user)
    return {"prevstate": job.stand}


async def status(caller: Caller) -> Answer:
    """The state of a job."""
    name, project = caller.given.text("job"), caller.given.optional("project")
    if project is not None:
        await _known(caller, project)
    job = await _job_of(caller, project, name)
    return {"currstate": job.stand if job else None}


async def listjobs(caller: Caller) -> Answer:
    """All jobs, or those of a project."""
    project = caller.given.optional("project")
    if project is not None:
        await _known(caller, project)
    jobs = [job for job in await caller.fleet.jobs() if project is None or job.project == project]
    return {
        "pending": [_pending(job) for job in by_stand(jobs, "pending")],
        "running": [_running(job) for job in by_stand(jobs, "running")],
        "finished": [_finished(job) for job in by_stand(jobs, "finished")],
    }


def by_stand(jobs: list[ScrapydJob], stand: Literal["pending", "running", "finished"]) -> list[ScrapydJob]:
    """Those in a state: the first submitted first, but of the finished the last ended first, and only the last ones."""
    chosen = [job for job in jobs if job.stand == stand]
    if stand == "finished":
        return list(islice(sorted(chosen, key=lambda job: (-job.ended, job.id)), FINISHED_SHOWN))
    return sorted(chosen, key=lambda job: (job.started or job.submitted, job.id))


def _pending(job: ScrapydJob) -> Answer:
    args = {name: value for name, value in job.args.items() if name not in _INNER_ARGS}
    return _named(job) | {"version": job.args.get("_version"), "settings": job.settings, "args": args}


def _running(job: ScrapydJob) -> Answer:
    return _named(job) | {"pid": None, "start_time": local_time(job.started)} | _files(job)


def _finished(job: ScrapydJob) -> Answer:
    return _named(job) | {"start_time": local_time(job.started), "end_time": local_time(job.ended)} | _files(job)


def _named(job: ScrapydJob) -> Answer:
    return {"id": job.id, "project": job.project, "spider": job.spider}


def _files(job: ScrapydJob) -> Answer:
    return {"log_url": file_path(job, "logs"), "items_url": file_path(job, "items")}


def file_path(job: ScrapydJob, kind: Literal["logs", "items"]) -> str:
    """Path of a job's log, or of its items."""
    parts = (quote(part, safe="") for part in (job.project, job.spider, job.id))
    return f"/{kind}/{'/'.join(parts)}.{'log' if kind == 'logs' else 'jl'}"


async def _job_of(caller: Caller, project: str | None, name: str) -> ScrapydJob | None:
    job = await caller.fleet.job(name)
    return job if job and project in {None, job.project} else None


# ------------------------------------------------------------------ projects


async def addversion(caller: Caller) -> Answer:
    """Deploys a version of a project."""
    project, version = caller.given.text("project"), caller.given.text("version")
    egg = caller.given.content("egg")
    if not zipfile.is_zipfile(io.BytesIO(egg)):
        raise ScrapydError("egg is not a ZIP file (if using curl, use egg=@path not egg=path)")
    _inside(project)
    if not _PROJECT.fullmatch(project):
        raise ScrapydError(f"project is invalid: '{project}': {_ALLOWED}")
    if not version:
        raise ScrapydError("version is invalid: it is empty")
    spiders = await caller.fleet.add_version(project, plain_version(version), egg, caller.user)
    return {"project": project, "version": version, "spiders": spiders}


async def listprojects(caller: Caller) -> Answer:
    return {"projects": list(await caller.fleet.projects())}


async def listversions(caller: Caller) -> Answer:
    """The versions of a project; the last one is used where none is named."""
    project = _inside(caller.given.text("project"))
    return {"versions": list(await _versions(caller, project))}


async def listspiders(caller: Caller) -> Answer:
    """The spiders of a version."""
    project, version = caller.given.text("project"), caller.given.optional("_version")
    return {"spiders": list((await _version(caller, project, version))[1])}


async def delversion(caller: Caller) -> Answer:
    """Deletes a version."""
    project, version = _inside(caller.given.text("project")), caller.given.text("version")
    kept = (await caller.fleet.projects()).get(project, ())
    gone = [name for name in kept if listed_version(name) == listed_version(version)]
    if not gone:
        raise ScrapydError(f"version '{version}' not found")
    for name in gone:
        await caller.fleet.delete(project, name, caller.user)
    return {}


async def delproject(caller: Caller) -> Answer:
    """Deletes a project."""
    project = _inside(caller.given.text("project"))
    if project not in await caller.fleet.projects():
        raise ScrapydError(f"project '{project}' not found")
    await caller.fleet.delete(project, None, caller.user)
    return {}


def plain_version(version: str) -> str:
    """A version as it is kept. Names made of a branch (`r5-feature/x`) have slashes; they become underscores."""
    return _NOT_OF_A_VERSION.sub("_", version)[:128]


def listed_version(version: str) -> str:
    """A version as Scrapyd lists it: without dots. `0.1` and `0_1` are the same one to its clients."""
    return _NOT_OF_A_LISTED_VERSION.sub("_", plain_version(version))


Kept = tuple[str, tuple[str, ...]]  # A version's name as it was deployed, and its spiders


async def _versions(caller: Caller, project: str) -> dict[str, Kept]:
    """The versions of a project as Scrapyd lists and orders them: by number where all are numbers, else by name."""
    kept = (await caller.fleet.projects()).get(project, {})
    listed = {listed_version(name): (name, spiders) for name, spiders in kept.items()}
    try:
        order = sorted(listed, key=lambda name: Version(listed[name][0]))
    except InvalidVersion:
        order = sorted(listed)
    return {name: listed[name] for name in order}


def _inside(project: str) -> str:
    if "/" in project or "\0" in project or project == "..":
        raise ScrapydError(f"DirectoryTraversalError: {project}")
    return project


async def _known(caller: Caller, project: str) -> None:
    """Refuses a project that neither is deployed nor has jobs."""
    projects = await caller.fleet.projects()
    if project not in projects and all(job.project != project for job in await caller.fleet.jobs()):
        raise ScrapydError(f"project '{project}' not found")


async def _version(caller: Caller, project: str, version: str | None) -> Kept:
    versions = await _versions(caller, project)
    if not versions:
        raise ScrapydError(f"project '{project}' not found")
    found = versions.get(listed_version(version) if version else next(reversed(versions)))
    if found is None:
        raise ScrapydError(f"version '{version}' not found")
    return found


# ------------------------------------------------------------------ the table


class Endpoint(NamedTuple):
    """An endpoint: its one method beside HEAD and OPTIONS, and the role that a user needs."""

    method: Literal["GET", "POST"]
    role: Role
    answer: Callable[[Caller], Awaitable[Answer]]

    @property
    def allow(self) -> str:
        """Its methods, for the header `Allow`."""
        return f"OPTIONS, HEAD, {self.method}"


ENDPOINTS: dict[str, Endpoint] = {
    "daemonstatus": Endpoint("GET", "read", daemonstatus),
    "addversion": Endpoint("POST", "deploy", addversion),
    "schedule": Endpoint("POST", "operate", schedule),
    "cancel": Endpoint("POST", "operate", cancel),
    "status": Endpoint("GET", "read", status),
    "listprojects": Endpoint("GET", "read", listprojects),
    "listversions": Endpoint("GET", "read", listversions),
    "listspiders": Endpoint("GET", "read", listspiders),
    "listjobs": Endpoint("GET", "read", listjobs),
    "delversion": Endpoint("POST", "deploy", delversion),
    "delproject": Endpoint("POST", "deploy", delproject),
}


log = structlog.get_logger()

SCRAPYD: web.AppKey[ScrapydFleet] = web.AppKey("scrapyd")


def routes(app: web.Application) -> None:
    """Adds the endpoints `/NAME.json`."""
    app[SCRAPYD] = ScrapydFleet(app)
    for name, endpoint in ENDPOINTS.items():
        is_upload = name == "addversion"
        for slashes in ("/", "//"):  # scrapyd-client adds one to the address, which ends with one in scrapy.cfg
            add(app, "*", f"{slashes}{name}.json", _handler(name, endpoint), endpoint.role, is_upload=is_upload)


def _handler(name: str, endpoint: Endpoint) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method == "OPTIONS":
            return web.Response(status=HTTPStatus.NO_CONTENT, headers={"Allow": endpoint.allow})
        is_ok, answer = await _answer(name, endpoint, request)
        if is_ok and name == "cancel" and request.headers.get("Sec-Fetch-Mode") == "navigate":
            # a button of our page, pressed in a browser: back to the page
            raise web.HTTPSeeOther(f"{prefix_of(request)}/jobs")
        body = json.dumps(answer | {"node_name": request.app[SCRAPYD].node}).encode() + b"\n"
        return web.Response(body=body, content_type="application/json")

    return handle


async def _answer(name: str, endpoint: Endpoint, request: web.Request) -> tuple[bool, Answer]:
    try:
        if request.method != endpoint.method and (request.method, endpoint.method) != ("HEAD", "GET"):
            raise ScrapydError(f"UnsupportedMethod: Expected one of [b'HEAD', b'OPTIONS', b'{endpoint.method}']")
        given = await arguments_of(request, UPLOAD_BYTES if name == "addversion" else BODY_BYTES)
        answer = await endpoint.answer(Caller(request.app[SCRAPYD], given, user_of(request)))
        return True, answer | {"status": "ok"}
    except TooMuchWork:
        return False, {"status": "error", "message": "too many commands wait; try again in a second"}
    except (ScrapydError, CrawlError) as error:
        return False, {"status": "error", "message": str(error)}
    except Exception as error:
        log.exception("scrapyd_request_failed", endpoint=name)
        return False, {"status": "error", "message": f"{type(error).__name__}: see the service's log"}
