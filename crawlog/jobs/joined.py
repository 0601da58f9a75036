"""`run` where a fleet is, and `submit --wait`: the fleet crawls, this command follows and writes FILE here.

has_fleet ─► submit ─► JobFollower ─► the end ─► export_job ─► FILE ─► Summary
│ Ctrl-C: detached, the job goes on
└ Ctrl-C again: the job is cancelled ─► FILE.partial ─► Summary
"""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from crawlog import outcome
from crawlog.processes.hold import holder
from crawlog.streams import engine
from crawlog.streams.errors import EngineError, InvalidState
from crawlog.streams.fleet import FleetView, JobView
from crawlog.streams.log import CommandProducer, has_topics
from crawlog.streams.sink import is_file

from .follow import LOOK_S, Before, JobFollower
from .live import View
from .run_hooks import call_hooks
from .summary import Summary

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

AGAIN_S = 3.0  # How long a second Ctrl-C cancels the job after the first one, seconds

RENEW_S = 1.0  # Time between two looks whether the local engine was started again, seconds

# How long to wait for a report of a fleet that seems to be gone, seconds: the broker's clock may differ from ours.
SIGN_S = 3.0


def has_fleet(settings: "Settings") -> bool:
    """Whether a `run` gives its job to workers that run already: those of `up` on this folder, or of a cluster.

    A command with workers of its own (`--workers`, `run.fetch_workers`) works by itself on a cluster.
    """
    if not settings.kafka.bootstrap:
        held = holder(settings.run.data)
        return held is not None and held.what == "up"
    if {"fetch_workers", "parse_workers"} & settings.run.model_fields_set:
        return False
    if not has_topics(settings):
        return False

    def is_told(view: FleetView) -> bool:
        return view.has_fleet() or not view.look(lambda state: state.had_fleet())

    return FleetView.read(settings, until=is_told, wait_s=SIGN_S).has_fleet()


class JoinedFleet:
    """Workers that run already.

    Attributes:
        settings: With the address and the password of the log; those of the local engine change with each start.
    """

    watch = None  # it reads no reports beside the follower's view

    def __init__(self, settings: "Settings", signals: "Signals") -> None:
        self.settings = settings
        self._signals = signals
        self._is_local = engine.is_at(settings.run.data, settings.kafka.bootstrap)
        self._renew_at = 0.0

    def look(self, wait_s: float) -> None:
        """Waits a moment. Raises: Detach: there was a signal."""
        self._signals.look()
        time.sleep(wait_s)
        if self._is_local and time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + RENEW_S
            with contextlib.suppress(EngineError):  # it is being started
                self.settings = engine.again(self.settings, self.settings.run.data)


def follow(
    settings: "Settings",
    job: "JobView",
    before: Before,
    shown: View,
    *,
    began: float,
    outputs: tuple[str, ...] = (),
    on_finish: tuple[str, ...] = (),
) -> Summary:
    """Follows a job of the fleet to its end, then writes its rows to `outputs`.

    Args:
        job: As it was submitted.
        before: The log before that.
        began: When the command began, UTC epoch seconds.
        outputs, on_finish: As of `run`.

    Raises: EngineError: the log does not answer, or an output of the job was not made. Misconfigured: the job failed.
    """
    signals = Signals()
    fleet = JoinedFleet(settings, signals)
    summary = Summary(
        job.name, output=", ".join(outputs) or None, epoch=job.epoch, resumed=0 < job.submitted_at < began
    )
    with signals.heard():
        following = None
        try:
            with outcome.unmasked(lambda: signals.detach):
                shown.say(f"job {job.name}, on the workers that run already")  # from here on Ctrl-C detaches
                following = JobFollower(fleet, summary, before, shown)
                following.until_ended()
                following.sum_stats()
                for file in outputs if not summary.is_gone else ():
                    shown.close()
                    _write(fleet.settings, summary, file, shown)
                following.outputs.check()
                producer = CommandProducer(fleet.settings, "crawlog-run")
                call_hooks(fleet.settings, producer, job.name, on_finish, shown.say)
        except Detach as detach:
            shown.close()
            summary.signal, summary.counts = detach.number, job.counts
            _leave_off(fleet.settings, summary, signals, shown)
            if following is not None:
                following.count()
        finally:
            shown.close()
            summary.took_s = time.time() - began
            if following is not None:
                following.close()
    if summary.reason == "cancelled":
        _write_partials(fleet.settings, summary, outputs, shown)
    return summary


def _leave_off(settings: "Settings", summary: Summary, signals: "Signals", shown: View) -> None:
    """Notes that a signal ends the command. The job goes on, unless it has ended or there is a second Ctrl-C."""
    if summary.reason != "interrupted":  # its end is told already
        is_unwritten = summary.output is not None and not summary.is_gone
        summary.reason = "interrupted" if is_unwritten else summary.reason
        return
    summary.reason = "detached"
    if summary.signal == signal.SIGINT and is_again(signals, shown):
        _cancel(settings, summary, shown)


def _cancel(settings: "Settings", summary: Summary, shown: View) -> None:
    """Cancels the job; one that has ended meanwhile stays as it is."""
    from .changes import cancel_job

    try:
        cancel_job(settings, summary.job)
    except InvalidState as error:
        shown.say(str(error))
    else:
        summary.signal, summary.reason = 0, "cancelled"


def _write(settings: "Settings", summary: Summary, output: str, shown: View) -> None:
    """Writes FILE. That of a stopped job has the rows so far, as a `run` has them."""
    from crawlog.commands.export import as_scraped, export_job

    written = export_job(settings, summary.job, output)
    if written.as_scraped:
        shown.say(as_scraped(written))
    if written.is_complete:
        summary.rows = written.rows
    else:
        summary.partial = written.output


def _write_partials(settings: "Settings", summary: Summary, outputs: tuple[str, ...], shown: View) -> None:
    """Writes the rows of a cancelled job to each FILE.partial, as a `run` leaves them; a signal ends that at once."""
    with contextlib.suppress(KeyboardInterrupt, SystemExit), outcome.stopped_by_signals():
        for output in filter(is_file, outputs):
            _write(settings, summary, output, shown)


class Detach(BaseException):
    """A signal ended the following; the job goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """The first signal raises `Detach`, further ones are noted. Where Python drops it (in a finalizer), `look` does.

    Attributes:
        detach: What the first signal has raised.
    """

    def __init__(self) -> None:
        self.is_again = False
        self.detach: Detach | None = None

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Hears signals within the block, but none that was ignored before it (`nohup`)."""
        numbers = [number for number in outcome.SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def look(self) -> None:
        """To be called while the job is followed. Raises: Detach: there was a signal."""
        if self.detach is not None:
            raise self.detach

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self.detach is not None:
            self.is_again = True
            return
        self.detach = Detach(number)
        raise self.detach


def is_again(signals: Signals, shown: View) -> bool:
    """Whether a second Ctrl-C comes in time."""
    shown.say(f"detached: the job goes on; Ctrl-C within {AGAIN_S:.0f} s cancels it")
    deadline = time.monotonic() + AGAIN_S
    while not signals.is_again and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return signals.is_again
