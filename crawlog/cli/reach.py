"""The log that a command works on: finds a running one, or starts the local engine."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from crawlog import outcome
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.terminal import tell

if TYPE_CHECKING:
    from crawlog.schemas.progress import Progress
    from crawlog.streams.cluster import BrokerLogin
    from crawlog.streams.settings import Settings

    Look = Callable[[float], Iterable[Progress]]

# How long a command that writes waits for a local broker that does not run, seconds: another one may start it.
GONE_S = 60.0


@contextmanager
def reachable_log(settings: "Settings") -> Iterator["Settings"]:
    """Yields the settings with the address of the log; starts the local engine if none runs.

    The last such command stops the engine afterwards, unless `run` or `up` has begun to use it meanwhile.
    """
    from crawlog.processes.hold import holder, same_log
    from crawlog.streams import logs

    logs.configure("error")  # standard output is for answers
    settings = same_log(settings)
    with outcome.stopped_by_signals():
        if settings.kafka.bootstrap:
            yield settings
            return
        from crawlog.processes.folder import prepare
        from crawlog.streams import engine

        prepare(settings.run.data)
        with engine.Users(settings.run.data) as users:
            local = engine.start(settings, settings.run.data, tell)
            if not local.adopted:
                users.note(local.pid)
            try:
                yield local.point(settings)
            finally:
                if users.is_last() and holder(settings.run.data) is None:
                    if not local.adopted and local.alive():
                        local.stop()
                    elif users.is_noted():  # another command's, or a later one
                        engine.stop(settings.run.data)


def login_of(settings: "Settings", reached: "Settings") -> "BrokerLogin | None":
    """The login callback of clients that may outlive the local broker; None on a cluster of the user's."""
    from crawlog.processes.hold import same_log
    from crawlog.streams import engine

    if same_log(settings).kafka.bootstrap:
        return None
    return partial(engine.login, settings.run.data, reached.kafka.bootstrap)


def while_up(settings: "Settings", reached: "Settings", look: "Look") -> "Look":
    """The same look; it ends the command once the local broker is gone for GONE_S, for which clients would wait."""
    from crawlog.streams import engine

    if login_of(settings, reached) is None:
        return look
    data = settings.run.data
    gone_at: float | None = None

    def looking(wait_s: float) -> "Iterable[Progress]":
        nonlocal gone_at
        now = time.monotonic()
        if engine.is_up(data):
            gone_at = None
        elif gone_at is None:
            gone_at = now
        elif now - gone_at > GONE_S:
            raise EngineError(
                f"the Apache Kafka of {data} was stopped, and nobody has started it for {GONE_S:.0f} s.\n"
                "Run the command again: it adds what is missing."
            )
        return look(wait_s)

    return looking


def check_log(settings: "Settings") -> None:
    """Raises: Misconfigured: the settings name no cluster, and the data folder holds no log."""
    from crawlog.processes.hold import same_log
    from crawlog.streams import engine

    if not same_log(settings).kafka.bootstrap and not engine.exists(settings.run.data):
        raise Misconfigured(
            f"there is no crawl in {settings.run.data}: the folder holds no log.\n"
            "Name the crawl's folder with --data DIR, or its cluster with --bootstrap HOST:PORT."
        )


@contextmanager
def existing_log(settings: "Settings", *, needs_topics: bool = True) -> Iterator["Settings"]:
    """The same for commands that only read: it makes no data folder, no log and no topics.

    Raises: Misconfigured: the folder holds no log. EngineError: the cluster has no topics of a crawl.
    """
    from crawlog.streams.log import partition_count

    check_log(settings)
    with reachable_log(settings) as reached:
        if needs_topics:
            partition_count(reached)
        yield reached


def running_log(settings: "Settings") -> "Settings":
    """The settings with the address of a running log; starts nothing."""
    from crawlog.processes.hold import same_log
    from crawlog.streams import engine

    settings = same_log(settings)
    if settings.kafka.bootstrap:
        return settings
    local = engine.running(settings.run.data)
    if local is None:
        raise Misconfigured(
            f"no Kafka to work on: --bootstrap names no cluster, and no local engine runs on {settings.run.data}.\n"
            "Start one with `crawlog up`."
        )
    return local.point(settings)


def fleet_log(settings: "Settings") -> "Settings":
    """The same for the commands of a fleet, whose standard output is for answers."""
    from crawlog.streams import logs

    logs.configure("error")
    return running_log(settings)
