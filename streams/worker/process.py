"""The process of a worker: event loop, logs, signals, exit.

Faust's worker sleeps more than a second at its end, prints spinners and banners, and starts a debugger at SIGUSR2.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import faust
import structlog
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError

from crawlog.streams import exit_codes, logs
from crawlog.streams.errors import CrawlError
from crawlog.streams.exit_codes import EX_TEMPFAIL
from crawlog.streams.kernel import collect_seldom, work_in_batch

from .own_process import exit_code_of_stop, give_back_large_blocks, reason_of_restart
from .watchdog import denial

if TYPE_CHECKING:
    from .crawl_app import CrawlApp

log = structlog.get_logger()

# Limit of a stop; after it the process exits as if killed. A stop takes 0.1 s, or 4 s if each wait is at its limit.
STOP_S = 6.0


class StageWorker(faust.Worker):
    """Faust's worker, quiet and quick to end; also what `faust -A … worker` uses."""

    app: "CrawlApp"
    logger = logging.getLogger("mode.crawlog.worker")

    def __init__(self, app: Any, *services: Any, **kwargs: Any) -> None:
        super().__init__(app, *services, **(kwargs | {"quiet": True, "redirect_stdouts": False}))
        self.spinner = None

    def _setup_logging(self) -> None:
        level = self.loglevel or self.app.crawl.log.level
        _configure_logs(self.app, logging.getLevelName(level) if isinstance(level, int) else _severity(level))

    def change_workdir(self, path: Any) -> None:
        """Keep the working folder: relative paths in the settings start there."""

    def _setproctitle(self, info: str, *, ident: str = "") -> None:
        """Keep the command line: it says more."""

    def _on_sigint(self) -> None:
        self._schedule_shutdown(signal.SIGINT)

    def _schedule_shutdown(self, signal: signal.Signals) -> None:  # mode's name
        if not self._signal_stop_time:
            log.info("stopping", signal=signal.name, group=self.app.conf.id)
            end = threading.Timer(STOP_S, _cut_off)
            end.daemon = True
            end.start()
        super()._schedule_shutdown(signal)

    def _enter_debugger(self) -> None:
        """Print the stacks at SIGUSR2, as at SIGUSR1: a debugger would hang a daemon."""
        self._on_sigusr1()

    def _shutdown_loop(self) -> None:
        """Exit once all services have stopped, without waiting for leftover tasks."""
        error = self.crash_reason or self._start_error()
        error = error and (denial(self.app.crawl, error) or error)
        code = 0
        if error is None:
            code = exit_code_of_stop()
            why = reason_of_restart()  # the supervisor shows the last line
            log.info("stopped", group=self.app.conf.id, **({"why": why} if why else {}))
        elif isinstance(error, KafkaConnectionError):
            code = EX_TEMPFAIL
            log.error("kafka_unreachable", group=self.app.conf.id, bootstrap=self.app.crawl.kafka.bootstrap)
        elif isinstance(error, OffsetOutOfRangeError):
            code = EX_TEMPFAIL  # the next worker finds the lost range, and starts after it
            log.error("log_ends_early", group=self.app.conf.id, wanted=str(error))
        else:
            code = exit_codes.code_of(error)
            log.critical("worker_crashed", group=self.app.conf.id, error=repr(error), exc_info=error)
            exit_codes.say(error)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    def _start_error(self) -> BaseException | None:
        start = self._starting_fut
        return start.exception() if start is not None and start.done() and not start.cancelled() else None


def run_worker(app: "CrawlApp") -> NoReturn:
    """Run the app's worker until it is told to stop."""
    _configure_logs(app, app.crawl.log.level)
    app.finalize()
    app.worker_init()
    try:
        app.discover()
    except (CrawlError, ModuleNotFoundError) as error:
        refuse_to_start(error, app.stage)
    app.worker_init_post_autodiscover()
    collect_seldom()
    give_back_large_blocks()
    work_in_batch()
    raise app.Worker(loglevel=app.crawl.log.level).execute_from_commandline()


def _configure_logs(app: "CrawlApp", level: str) -> None:
    logs.configure(level, app.crawl.log.format, worker=app.worker_name, stage=app.stage)


def refuse_to_start(error: Exception, stage: str) -> NoReturn:
    """Exit before the start, with the reason in one log line."""
    logs.configure("error")
    log.critical("worker_refused", stage=stage, error=str(error))
    exit_codes.say(error)
    raise SystemExit(exit_codes.code_of(error)) from None


def _severity(level: str) -> str:
    return {"crit": "critical", "warn": "warning"}.get(level.lower(), level)


def _cut_off() -> None:
    log.error("stop_cut_off", after_s=STOP_S)
    os._exit(1)
