"""The three Faust apps, a consumer group each: `faust -A crawlog.streams.app:fetch worker` or `crawlog worker fetch`.

`fetch`, `parse` and `sink` are built on first access from the settings of the process. An agent's module has a
function `attach(app)`, which gives an app its agents, hooks and tasks; importing it does nothing. A worker imports
them by the names in `stages.py` when it starts, so nothing here imports an agent. Topics carry raw bytes, and crawlog
creates them. There are no tables, no web server, no replies, no leader. Output goes through our own producer, so
Faust's is never started.
"""

import os
import socket
from collections.abc import Callable
from typing import get_args

import click

from crawlog.streams.settings import Settings, load
from crawlog.streams.worker import CrawlApp

from . import files
from .errors import CrawlError, Misconfigured
from .kernel import system_mark
from .stages import Stage


def own_name() -> str:
    """The name of this process's worker: `CRAWLOG_WORKER`, else host, system and pid."""
    return os.environ.get("CRAWLOG_WORKER") or f"{socket.gethostname()}-{system_mark()}-{os.getpid()}"


def build(stage: Stage, settings: Settings, worker_name: str | None = None, sink_name: str | None = None) -> CrawlApp:
    """The app of a stage.

    Args:
        worker_name: None for `own_name()`.
        sink_name: None for `CRAWLOG_SINK`; each sink has its own consumer group.

    Raises: Misconfigured: no cluster is named and no local engine runs.
    """
    if worker_name is None:
        worker_name = own_name()
    if sink_name is None:
        sink_name = _sink_name() if stage == "sink" else ""
    app = CrawlApp(stage, _with_log(settings), worker_name, sink_name if stage == "sink" else "")
    app.is_environment_error = _is_environment_error
    return app


def _sink_name() -> str:
    from crawlog.streams.sink import PrivateOutputs  # imports the database; other stages do not need it

    private = PrivateOutputs.read(os.environ)
    return private.id if private is not None else ""


def worker(stage: Stage, settings: Callable[[], Settings] = load) -> None:
    """Run one worker of a stage until it is told to stop; does not return.

    Args:
        settings: Loads the settings; an error in them becomes the worker's last words.
    """
    from crawlog.streams.worker import (  # imports Faust's worker; clients of the apps do not need it
        refuse_to_start,
        run_worker,
    )

    if stage != "sink":  # the sink keeps the user's umask for FILE
        os.umask(files.OTHERS)
    try:
        app = _the(stage, settings)
    except CrawlError as error:
        refuse_to_start(error, stage)
    run_worker(app)


def _with_log(settings: Settings) -> Settings:
    if settings.kafka.bootstrap:
        return settings
    from crawlog.streams.engine import running  # not needed if the settings name a cluster

    engine = running(settings.run.data)
    if engine is None:
        raise Misconfigured(
            f"kafka.bootstrap is empty and no local engine runs on {settings.run.data}:"
            " name a cluster with --bootstrap HOST:PORT, or start the engine with `crawlog up`"
        )
    return engine.point(settings)


def _is_environment_error(error: BaseException) -> bool:
    from crawlog.streams.state import is_environment_error  # imports the database; parse does not need it

    return is_environment_error(error)


_apps: dict[str, CrawlApp] = {}


def _the(stage: Stage, settings: Callable[[], Settings] = load) -> CrawlApp:
    if stage not in _apps:
        _apps[stage] = build(stage, settings())
    return _apps[stage]


def __getattr__(name: str) -> CrawlApp:
    if name in get_args(Stage):
        try:
            return _the(name)  # type: ignore[arg-type]  # just checked
        except Misconfigured as error:
            raise click.UsageError(str(error)) from None  # for `faust -A`, which prints it and exits with 2
    raise AttributeError(f"module {__name__} has no attribute {name}")
