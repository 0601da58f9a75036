"""Which jobs' `start` runs in this process, as crawl.control tells it: no command stops it, and it has not ended.

    crawl.control ─► ControlState ─► those that wait, by the time they were submitted ─► `spider.starts` that run

It only reads crawl.control if that has grown: its process has workers to watch. A `start` may be endless, and cannot go
on later where it was: none makes room for another, so the jobs that wait are told of it. One with `@every` waits for
its time, by the note of its last end.
"""

import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from crawlog.schemas.control import WorkerCommand, key_of
from crawlog.streams.errors import EngineError

from .starting import LogFollower, Starting, start_lines

if TYPE_CHECKING:
    from crawlog.schemas.control import Control
    from crawlog.streams.jobs import NextStart

# Spiders that are loaded at a time: each takes a CPU second or more beside the workers, with a limit by the clock.
MOST_LOADING = 4

JOBS_LOOK_S = 0.5  # Time between two looks whether crawl.control has grown: then a job's `start` may be due, seconds

BROKEN_S = 10.0  # Pause after an error of that look, seconds


class Starts:
    """The `start` of each job in the log whose spider may run here, for `run`, `up` and `worker start`.

    Another process of the cluster may give the same requests at the same time; what is known falls away.

    Args:
        worker: Name of this process, by which it may be ordered to end; empty if nobody may.
        job: The one job of a `run`; empty for all.
        clock: UTC epoch seconds, for `@every`.
    """

    def __init__(
        self,
        follower: LogFollower,
        say: Callable[[str], None],
        worker: str = "",
        job: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._worker = worker
        self._job = job
        self._follower = follower
        self._say = say
        self._clock = clock
        self._running: dict[tuple[str, int], Starting] = {}
        self._waiting: dict[tuple[str, int], NextStart] = {}
        self._told: set[tuple[str, int]] = set()  # those of which it was said that they wait
        self._look_at = 0.0
        self._read_to = -1

    def look(self) -> None:
        """Begins those that are due, and lets each go on."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + JOBS_LOOK_S
            try:
                self._look_at_control()
                self._begin()
            except EngineError:  # as in `Starting`
                pass
            except Exception as error:  # noqa: BLE001  # the process has workers, and other jobs
                self._look_at = now + BROKEN_S
                self._say("no `start` can be begun:")
                for line in traceback.format_exception(error):
                    self._say(line.rstrip())
        for one, starting in list(self._running.items()):
            starting.look()
            if not starting.is_running:
                del self._running[one]

    def close(self) -> None:
        """Ends all children."""
        for starting in self._running.values():
            starting.close()

    def _look_at_control(self) -> None:
        """Ends what is due no more and notes what is due, if crawl.control has grown since the last look."""
        assert self._follower.watch is not None
        end = self._follower.watch.control_end()
        if end != self._read_to:
            self._read_control()
            self._read_to = end

    def _read_control(self) -> None:
        from crawlog.streams.control import read_control
        from crawlog.streams.log import Topics
        from crawlog.streams.spiders import code_of, trust_of

        settings = self._follower.settings
        trust = trust_of(settings)
        control = read_control(settings, Topics(settings.kafka.prefix))
        self._obey(control.records.get(key_of("worker", self._worker)))
        due = {one: copy for one, copy in control.startable().items() if self._job in ("", copy.job)}
        for one in self._running.keys() - due.keys():  # first: else a former epoch's requests would be the next one's
            self._running.pop(one).close()
        self._waiting.clear()
        for one, copy in sorted(due.items(), key=lambda item: item[1].spec.at):
            code = code_of(copy.spec.spider)
            wanted = control.next_start(copy)
            may_run = copy.spec.code is not None or (code is not None and not trust.refusal(code))
            if one not in self._running and wanted is not None and may_run:  # deployed code is judged where it is run
                self._waiting[one] = wanted
        self._told &= self._waiting.keys()

    def _obey(self, order: "Control | None") -> None:
        """Ends this process as SIGTERM does if it was ordered to."""
        if self._worker and isinstance(order, WorkerCommand):
            from crawlog.streams.worker import is_for_us, stop_as_ordered

            if is_for_us(order, self._worker):
                stop_as_ordered(order)

    def _begin(self) -> None:
        """Begins those for which there is room."""
        most, now = self._follower.settings.spider.starts, self._clock()
        for one, wanted in list(self._waiting.items()):
            if wanted.at > now:
                continue
            if len(self._running) >= most:
                self._tell(one, most)
            elif sum(starting.is_loading for starting in self._running.values()) < MOST_LOADING:
                self._running[one] = Starting(wanted.copy, self._follower, self._say, wanted.after)
                del self._waiting[one]

    def _tell(self, one: tuple[str, int], most: int) -> None:
        """Says once, also to the job's own log, that its `start` waits for the end of another one."""
        from crawlog.schemas.log_lines import LogLine

        if one not in self._told:
            self._told.add(one)
            why = f"waits until one of {most:,} others here has ended (spider.starts)"
            start_lines().add(one[0], LogLine(time.time(), f"its `start` {why}", "warning", "start_waits"))
            self._say(f"`start` of job {one[0]} {why}")
