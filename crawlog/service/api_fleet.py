"""The fleet and its code: status, workers, slowest hosts, exits, lag of stages, settings; deployed projects."""

from typing import Annotated, Any

import msgspec
import structlog

from crawlog.commands.fleet_workers import order_worker
from crawlog.commands.projects import (
    Deployed,
    ProjectVersion,
    Removed,
    delete_project,
    delete_version,
    deploy,
    is_in_log,
    versions,
)
from crawlog.jobs.schedules import follow_project
from crawlog.schemas.control import WorkerAction
from crawlog.streams.fleet import ExitView, FleetState, LostWorker, StageView, WorkerView, letters_of
from crawlog.streams.settings import Settings, origins

from .answers import AnswerError
from .api_jobs import SEEN_S
from .endpoint import ApiCall, ApiEndpoint

log = structlog.get_logger()


class StatusAnswer(msgspec.Struct, frozen=True):
    """The fleet in numbers.

    Attributes:
        jobs: Number of jobs by state.
        dead: Open dead letters: records that could not be handled, and that nobody has redriven or dropped since.
    """

    jobs: dict[str, int]
    workers: int
    stages: tuple[StageView, ...]
    dead: int


class SettingView(msgspec.Struct, frozen=True):
    """A setting in force in the service; secrets are hidden.

    Attributes:
        origin: `flag`, `-s`, `environment NAME`, a file, `default`, or `crawlog` for what it has set itself.
    """

    key: str
    value: Any
    origin: str
    default: Any
    about: str


def _status(call: ApiCall) -> StatusAnswer:
    found = call.fleet.status()
    states: dict[str, int] = {}
    for job in found.jobs:
        states[job.state] = states.get(job.state, 0) + 1
    return StatusAnswer(states, len(found.workers), found.stages, letters_of(call.fleet).total())


def _workers(call: ApiCall) -> tuple[WorkerView, ...]:
    return call.fleet.status().workers


def _lost(call: ApiCall) -> list[LostWorker]:
    return call.fleet.lost()


def _exits(call: ApiCall) -> tuple[ExitView, ...]:
    return call.fleet.status().exits


def _stages(call: ApiCall) -> list[StageView]:
    return call.fleet.stages()


def _settings(call: ApiCall) -> list[SettingView]:
    return setting_views(call.settings)


def setting_views(settings: Settings) -> list[SettingView]:
    """All settings in force."""
    return [
        SettingView(one.key, _plain(one.value), one.origin, _plain(one.default), one.about) for one in origins(settings)
    ]


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)


class VersionsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which project; empty for all."""

    project: Annotated[str, msgspec.Meta(max_length=200)] = ""


class RemovalQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether no worker starts the code any more, for jobs that pin it, too."""

    revoke: bool = False


def _versions(call: ApiCall) -> list[ProjectVersion]:
    return versions(call.settings, call.query.project)


def _known(call: ApiCall, version: str | None = None, *, revoke: bool = False) -> str:
    """The project that the path names. Raises: AnswerError: there is none, or it has no such version.

    Args:
        revoke: Whether a deleted version that the log still has counts too.
    """
    project = call.path["project"]
    if revoke and is_in_log(call.settings, project, version or ""):
        return project
    found = versions(call.settings, project)
    if not found or version not in (None, *(one.version for one in found)):
        named = project if version is None else f"{project} {version}"
        raise AnswerError(404, f"there is no project {named!r:.260}")
    return project


def _of_project(call: ApiCall) -> list[ProjectVersion]:
    return versions(call.settings, _known(call))


def schedule_stays(line: str) -> None:
    """Logs that a schedule goes on with the version before: whoever deploys by a program sees no line."""
    log.warning("schedule_stays", line=line)


def _deploy(call: ApiCall) -> Deployed:
    deployed = deploy(call.settings, call.body, call.path["project"], call.path["version"], call.user)
    follow_project(call.settings, deployed.project, schedule_stays)
    return deployed


def _delete_version(call: ApiCall) -> Removed:
    version, revoke = call.path["version"], call.query.revoke
    return delete_version(call.settings, _known(call, version, revoke=revoke), version, call.user, revoke=revoke)


def _delete_project(call: ApiCall) -> Removed:
    revoke = call.query.revoke
    return delete_project(call.settings, _known(call, revoke=revoke), call.user, revoke=revoke)


def _is_ordered(state: FleetState, worker: WorkerView, action: WorkerAction) -> bool:
    order = state.control.order_to(worker.id)
    return order is not None and order.action == action and order.is_to(worker.id, worker.pid, worker.started_at)


def _order(action: WorkerAction, summary: str) -> ApiEndpoint:
    def order(call: ApiCall) -> WorkerView:
        worker = order_worker(call.settings, call.path["worker"], action, call.user, lambda _: call.fleet.workers())
        call.fleet.wait_until(lambda state: _is_ordered(state, worker, action), SEEN_S)
        return worker

    return ApiEndpoint("POST", f"/workers/{{worker}}/{action}", "operate", summary, WorkerView, order, errors=(409,))


_ONE = "/projects/{project}"
_VERSION = "/projects/{project}/versions/{version}"

ENDPOINTS = (
    ApiEndpoint("GET", "/status", "read", "The fleet in numbers", StatusAnswer, _status),
    ApiEndpoint("GET", "/workers", "read", "Living workers of all machines", tuple[WorkerView, ...], _workers),
    ApiEndpoint("GET", "/workers/lost", "read", "Workers that ended in the last hour", list[LostWorker], _lost),
    _order("pause", "Pause one worker: it keeps its partitions"),
    _order("resume", "Let a paused worker go on"),
    _order("stop", "End a worker's process; its supervisor starts another one"),
    _order("drain", "End a worker's process; `crawlog up` starts no other one"),
    ApiEndpoint("GET", "/exits", "read", "Exits of fetch workers", tuple[ExitView, ...], _exits),
    ApiEndpoint("GET", "/stages", "read", "Stages with their lag", list[StageView], _stages),
    ApiEndpoint("GET", "/settings", "read", "Settings in force, secrets hidden", list[SettingView], _settings),
    ApiEndpoint("GET", "/projects", "read", "Projects' versions", list[ProjectVersion], _versions, query=VersionsQuery),
    ApiEndpoint("GET", _ONE, "read", "A project's versions, the newest last", list[ProjectVersion], _of_project),
    ApiEndpoint("PUT", _VERSION, "deploy", "Deploy an egg or a ZIP", Deployed, _deploy, body=bytes, status=201),
    ApiEndpoint("DELETE", _VERSION, "deploy", "Delete a version", Removed, _delete_version, query=RemovalQuery),
    ApiEndpoint("DELETE", _ONE, "deploy", "Delete a project", Removed, _delete_project, query=RemovalQuery),
)
