"""The fleet: status, workers, slowest hosts, stages with their lag, topics, settings."""

from typing import Any

import msgspec

from crawlog.streams.cluster import log_bounds
from crawlog.streams.fleet import HostView, StageView, WorkerView, letters_of
from crawlog.streams.log import Topics
from crawlog.streams.settings import masked, values

from .endpoint import ApiCall, ApiEndpoint


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


class TopicView(msgspec.Struct, frozen=True):
    """A topic.

    Attributes:
        partitions: First and next offset of each.
        records: At most; compaction may have removed some.
    """

    name: str
    partitions: list[tuple[int, int]]
    records: int


class SettingView(msgspec.Struct, frozen=True):
    """A setting in force in the service; secrets are hidden."""

    key: str
    value: Any


def _status(call: ApiCall) -> StatusAnswer:
    found = call.fleet.status()
    states: dict[str, int] = {}
    for job in found.jobs:
        states[job.state] = states.get(job.state, 0) + 1
    return StatusAnswer(states, len(found.workers), found.stages, letters_of(call.fleet).total())


def _workers(call: ApiCall) -> tuple[WorkerView, ...]:
    return call.fleet.status().workers


def _hosts(call: ApiCall) -> tuple[HostView, ...]:
    return call.fleet.status().hosts


def _stages(call: ApiCall) -> list[StageView]:
    return call.fleet.stages()


def _topics(call: ApiCall) -> list[TopicView]:
    names, count = Topics(call.settings.kafka.prefix), call.settings.kafka.partitions
    counts = {names.urls: count, names.pages: count, names.items: count}
    counts |= dict.fromkeys((names.control, names.progress, names.dead, names.code, names.logs), 1)
    views = []
    for name, partitions in counts.items():
        bounds = sorted(log_bounds(call.settings, name, list(range(partitions))).items())
        places = [(first, end) for _, (first, end) in bounds]
        views.append(TopicView(name, places, sum(end - first for first, end in places)))
    return views


def _settings(call: ApiCall) -> list[SettingView]:
    return [SettingView(key, _plain(masked(key, value))) for key, value in values(call.settings).items()]


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)


ENDPOINTS = (
    ApiEndpoint("GET", "/status", "read", "The fleet in numbers", StatusAnswer, _status),
    ApiEndpoint("GET", "/workers", "read", "Living workers of all machines", tuple[WorkerView, ...], _workers),
    ApiEndpoint("GET", "/hosts", "read", "The slowest hosts", tuple[HostView, ...], _hosts),
    ApiEndpoint("GET", "/stages", "read", "Stages with their lag", list[StageView], _stages),
    ApiEndpoint("GET", "/topics", "read", "Topics with their offsets", list[TopicView], _topics),
    ApiEndpoint("GET", "/settings", "read", "Settings in force, secrets hidden", list[SettingView], _settings),
)
