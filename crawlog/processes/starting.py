"""The `start` of a job's spider: it runs in a child process, and goes to the log as fast as the job takes it.

    child: Runner.start ─► parts ─► StartSower ─► crawl.urls, crawl.items
      ▲                                               │ queued and not yet folded: fewer than MOST_WAITING?
      └──────────── the next parts are asked for ◄────┘

`start` may be endless: the child goes on only when the next part is asked for. After a kill it begins again, and what
the job knows falls away. When it has ended, and all that it gave is in the log, crawl.control says so.

A Scrapy spider that waits for `spider_idle` is fed behind its `start`: it is asked for one part at a time, once all
parts before are acknowledged (`FEED`: few requests wait; `IDLE`: the job has nothing left). The job is not finished
while it is fed.
"""

import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Protocol

import msgspec

from crawlog.schemas.control import NO_EPOCH, Command, JobCopy, Join, StartEnded
from crawlog.streams import crash_points
from crawlog.streams.errors import EngineError, GiveUp, Misconfigured, SpiderDied

from .feeding import Feeding

if TYPE_CHECKING:
    from crawlog.agents.job_lines import JobLines
    from crawlog.agents.sandbox import BackgroundChild, Died, SpiderFrame
    from crawlog.agents.seed import StartSower
    from crawlog.streams.fleet import ProgressReader
    from crawlog.streams.jobs import FleetReports
    from crawlog.streams.log import Producer
    from crawlog.streams.settings import Settings
    from crawlog.streams.spiders import CallResult, SpiderFacts

MOST_WAITING = 10_000  # Requests of a job that are queued or not yet folded, from which on `start` waits

AHEAD = 64  # Parts that are asked for at a time: the process looks two to ten times a second

FED_S = 0.1  # Time in which one look asks a spider that is fed for more, seconds

FED_STEP_S = 0.002  # Pause in it, for the child and the broker to answer, seconds

TRIES = 3  # Attempts of a `start` whose process died; each begins at the beginning

# Different warnings of a `start` that are said, since an endless one may make a new one for each request.
MAX_WARNINGS = 1000

AGAIN_S = 1.0  # Pause before the next attempt, seconds

# How long the acknowledgement of a note is waited for, seconds: a broker that died is restarted between two looks.
NOTE_S = 2.0

HELD_LOOK_S = 2.0  # Time between two looks whether the job was stopped, seconds

TRACE_LINES = 20  # Lines of a traceback that are said


@cache
def start_lines() -> "JobLines":
    """The lines of this process about jobs: what their `start` prints, and its errors."""
    from crawlog.agents.job_lines import JobLines
    from crawlog.streams import logs

    lines = JobLines(socket.gethostname(), "start")
    logs.listen(lines.heard)
    return lines


class LogFollower(Protocol):
    """A process that follows the log: the supervisor of `run` and `up`, or `crawlog worker start`."""

    @property
    def settings(self) -> "Settings":
        """Those of now: a broker that was started again may have another address."""

    @property
    def picture(self) -> "FleetReports":
        """The reports of the workers."""

    @property
    def watch(self) -> "ProgressReader | None":
        """It reads them; None before the log is reached."""

    @property
    def producer(self) -> "Producer":
        """The one of now: a broker at another address has another one, and may lack what the former one sent."""


class Starting:
    """One job's `start`, until it has ended or the job is stopped.

    Args:
        after: As in `NextStart`.

    Attributes:
        is_running: Whether it may give more.
        error: With which it ended, or else the first beside which it went on, one line; empty without one.
        items: That it gave, once it has ended.
    """

    def __init__(self, copy: JobCopy, follower: LogFollower, say: Callable[[str], None], after: float = 0.0) -> None:
        from crawlog.streams.log import Topics

        self.is_running = True
        self.error = ""
        self.items = 0
        self._copy = copy
        self._after = after
        self._follower = follower
        self._topics = Topics(follower.settings.kafka.prefix)
        self._producer = follower.producer
        self._say = say
        self._child: BackgroundChild | None = None
        self._sower: StartSower | None = None
        self._asked = 0
        self._answers: deque[SpiderFrame | Died] = deque()  # not taken yet
        self._is_unsure = False  # whether the broker did not acknowledge the first of them
        self._closes = ""
        self._largest = MOST_WAITING // 2  # requests of one part; the first parts tell
        self._has_part = False
        self._deaths = 0
        self._begin_at = 0.0
        self._held_at = time.monotonic() + HELD_LOOK_S
        self._read_to = -1
        self._has_ended = False
        self._feeding = Feeding(copy.job)
        self._said: set[str] = set()
        self._lines = start_lines()

    @property
    def is_loading(self) -> bool:
        """Whether its spider is not loaded yet, or is loaded again."""
        is_begun = self.is_running and time.monotonic() >= self._begin_at
        return is_begun and self._sower is None and not self._has_ended

    def look(self) -> None:
        """Takes the parts that are there, and asks for more if the job has few requests waiting. Does not wait."""
        if self.is_running:
            try:
                self._look(time.monotonic())
            except EngineError:  # the broker may be restarting: a later look succeeds
                pass
            except OSError as error:  # no room in TMPDIR, or no process or descriptor left
                self._say_once(f"`start` of job {self._copy.job} waits: {error.strerror or error}")
                self._begin_anew()
                self._begin_at = time.monotonic() + AGAIN_S
            except Exception as error:  # noqa: BLE001  # of this job: the workers and the other jobs go on
                self._break(error)
            self._send_lines()

    def _send_lines(self) -> None:
        """Sends what was said of jobs to crawl.logs. A line is worth less than a request: a long one may be lost."""
        from crawlog.schemas import log_lines

        for record in self._lines.take():
            with suppress(GiveUp):
                self._producer.send(self._topics.logs, log_lines.encode(record), key=record.job.encode(), partition=0)

    def _look(self, now: float) -> None:
        if self._producer is not self._follower.producer:
            self._begin_anew()
        if now >= self._held_at:
            self._held_at = now + HELD_LOOK_S
            if self._is_held():
                self.close()
                return
        if self._has_ended:
            self._note_end()
        elif now >= self._begin_at:
            self._go_on()

    def close(self) -> None:
        """Ends the child. Without a note of the end, the next command begins `start` again."""
        self.is_running = False
        self._sower = None
        if self._child is not None:
            self._child.close()
            self._child = None

    def _go_on(self) -> None:
        try:
            child = self._child or self._begin()
            sower = self._sower
            if sower is None and (facts := _facts(child)) is not None:
                sower = self._sowing(facts.label)
        except Misconfigured as error:
            self._fail(str(error))
        except SpiderDied as error:
            self._begin_again(str(error))
        except EngineError:
            self._begin_at = time.monotonic() + AGAIN_S  # each attempt starts a process
            raise
        else:
            if sower is not None:
                self._ask(child, sower)

    def _begin(self) -> "BackgroundChild":
        from crawlog.agents.sandbox import BackgroundChild, ChildRules
        from crawlog.streams.spiders import ref_of, trust_of

        copy, settings = self._copy, self._follower.settings
        ref = msgspec.structs.replace(ref_of(copy.job, copy.epoch, copy.spec), after=self._after)
        self._child = BackgroundChild(ref, ChildRules.of(settings, trust_of(settings)))
        return self._child

    def _sowing(self, label: str) -> "StartSower":
        from crawlog.agents.seed import StartSower
        from crawlog.streams.control import read_control, write_control
        from crawlog.streams.log import partition_count

        if self._after:  # the note of the last end counts no more, so the job does not end meanwhile
            again = StartEnded(self._copy.job, self._after, NO_EPOCH)
            write_control(self._producer, self._topics, [again], NOTE_S)
        joins = read_control(self._follower.settings, self._topics, joins=True).of(Join)
        names = (name for join in joins if join.job == self._copy.job for name in join.names)
        count = partition_count(self._follower.settings)
        self._sower = StartSower(self._producer, self._topics, count, self._copy, label, names)
        return self._sower

    def _ask(self, child: "BackgroundChild", sower: "StartSower") -> None:
        """Takes the parts that are there, then asks for as many as may be on their way."""
        from crawlog.agents.sandbox import NEXT, SpiderFrame

        if not self._take_answers():
            return
        child.pump()
        self._take_answers()
        if self._feeding.waits:
            self._feed(child, sower)
            return
        waiting = sower.waiting(self._follower.picture)
        if self._has_ended or self._sower is not sower:
            return
        room = (MOST_WAITING - waiting) // self._largest
        for _ in range(self._asked, min(room, AHEAD)):
            self._asked += 1
            child.submit(SpiderFrame(NEXT), self._hear)
        child.pump()
        self._take_answers()

    def _feed(self, child: "BackgroundChild", sower: "StartSower") -> None:
        """Asks a spider that is fed for one part at a time, each once the log has those before."""
        from crawlog.agents.sandbox import NEXT, SpiderFrame

        end, follower = time.monotonic() + FED_S, self._follower
        assert follower.watch is not None
        while self._feeding.waits and not self._has_ended and (now := time.monotonic()) < end:
            if not self._asked and not self._producer.outstanding:
                waiting = sower.waiting(follower.picture)
                wish = self._feeding.wish(waiting, follower.picture, follower.watch.ends, now)
                if not wish:
                    return
                self._asked += 1
                child.submit(SpiderFrame(NEXT, wish), self._hear)
            time.sleep(FED_STEP_S)
            child.pump()
            self._take_answers()

    def _hear(self, answer: "SpiderFrame | Died") -> None:
        self._asked -= 1
        self._answers.append(answer)

    def _take_answers(self) -> bool:
        """Takes the answers that are there, in order; False if the broker does not acknowledge those before.

        Raises: EngineError: it did not acknowledge the first one in time, which is taken again later.
        """
        self._producer.poll()
        if self._is_unsure and self._producer.outstanding:
            return False
        while self._answers:
            self._is_unsure = True
            self._take(self._answers[0])
            self._is_unsure = False
            self._answers.popleft()
        return True

    def _take(self, answer: "SpiderFrame | Died") -> None:
        """Takes one part, the end, or the death of the child."""
        from crawlog.agents.sandbox import ENDED, Died, result_of

        if self._has_ended or self._sower is None:
            return
        if isinstance(answer, Died):
            self._begin_again(answer.reason)
        elif answer.kind == ENDED:
            self._has_ended = True
        else:
            self._sow(result_of(answer))

    def _sow(self, result: "CallResult") -> None:
        assert self._sower is not None
        try:
            self._sower.sow(result)
        except ValueError as error:
            self._fail(str(error))
            return
        self._largest = max(self._largest if self._has_part else 1, len(result.requests))
        self._has_part = True
        for line in result.warnings:
            self._say_once(line)
        if result.error and result.goes_on:
            self._note_error(f"{result.error}; it went on", result.trace)
        elif result.error:
            self._fail(result.error, result.trace)
        self._feeding.took(result)
        if result.waits and result.requests:
            self._deaths = 0  # it may run for months
        if result.closes:
            self._closes = result.closes
            self._has_ended = True

    def _close_job(self) -> None:
        from crawlog.streams.control import write_command

        command = Command("stop", job=self._copy.job, at=time.time(), reason=self._closes)
        write_command(self._producer, self._topics, command, NOTE_S)
        self._closes = ""

    def _begin_again(self, reason: str) -> None:
        """Begins at the beginning after the death of the child; what it gave is known and falls away."""
        self._deaths += 1
        if self._deaths >= TRIES:
            self._fail(reason)
            return
        self._say(f"`start` of job {self._copy.job}: {reason}; it begins again")
        self._sower, self.error, self._feeding.waits = None, "", False
        self._begin_at = time.monotonic() + AGAIN_S

    def _begin_anew(self) -> None:
        """Begins at the beginning, with the producer of now."""
        self._producer = self._follower.producer
        if self._child is not None:
            self._child.close()
            self._child = None
        self._sower = None
        self._answers.clear()
        self._asked = 0
        self._is_unsure = self._has_ended = self._feeding.waits = False
        self._closes = self.error = ""

    def _note_error(self, error: str, trace: str) -> None:
        """Says an error beside which it goes on, each text once."""
        self.error = self.error or error
        if error not in self._said and len(self._said) < MAX_WARNINGS:
            self._said.add(error)
            self._tell_error(error, trace, "has an error beside it", "start_error")

    def _fail(self, error: str, trace: str = "") -> None:
        self.error, self._has_ended = error, True
        self._tell_error(error, trace, "failed", "start_failed")

    def _tell_error(self, error: str, trace: str, what: str, code: str) -> None:
        from crawlog.schemas.log_lines import MAX_LINE, LogLine

        text = "\n".join((error, *trace.splitlines()[:TRACE_LINES]))[:MAX_LINE]
        self._lines.add(self._copy.job, LogLine(time.time(), text, "error", code))
        self._say(f"`start` of job {self._copy.job} {what}: {error}")
        for line in trace.splitlines()[:TRACE_LINES]:
            self._say(f"  {line}")

    def _break(self, error: Exception) -> None:
        """Fails. Where the note of the end cannot be written, the next command begins `start` again."""
        from crawlog.agents.sandbox import error_line
        from crawlog.streams.spiders import user_trace

        if self._has_ended:
            self.close()
        self._fail(error_line(error), user_trace(error))

    def _note_end(self) -> None:
        """Writes that `start` has ended, once the log has all that it gave."""
        from crawlog.streams.control import write_control

        self._producer.poll()
        if self._producer.outstanding:
            return
        if self._closes:
            self._close_job()
            if self._feeding.waits:  # a job that goes on after that is fed again
                self.close()
                return
        sower, loaded = self._sower, self._child.loaded if self._child else None
        record = StartEnded(
            job=self._copy.job,
            at=time.time(),
            epoch=self._copy.epoch,
            spider=loaded.digest if loaded else "",
            args=self._copy.spec.args,
            requests=sower.requests if sower else 0,
            items=sower.items if sower else 0,
            error=self.error,
        )
        crash_points.point("start.noting")
        write_control(self._producer, self._topics, [record], NOTE_S)
        crash_points.point("start.noted")
        self.items = record.items
        if sower and sower.refused:
            self._say(f"`start` of job {self._copy.job} gave {sower.refused:,} requests whose URL is none")
        self.close()

    def _is_held(self) -> bool:
        """Whether the job was stopped, cancelled, or begun again by another command since the last look.

        Reads crawl.control only if it has grown: of a broker that has died this thread would wait half a minute for it.
        """
        from crawlog.streams.control import read_control

        assert self._follower.watch is not None
        end = self._follower.watch.control_end()
        if end == self._read_to:
            return False
        control = read_control(self._follower.settings, self._topics)
        is_held = (self._copy.job, self._copy.epoch) not in control.startable()
        self._read_to = end
        return is_held

    def _say_once(self, line: str) -> None:
        """Says a line once, also to the job's own log."""
        from crawlog.schemas.log_lines import MAX_LINE, LogLine

        if line not in self._said and len(self._said) < MAX_WARNINGS:
            self._said.add(line)
            self._lines.add(self._copy.job, LogLine(time.time(), line[:MAX_LINE], "warning", "start_warning"))
            self._say(line)


def _facts(child: "BackgroundChild") -> "SpiderFacts | None":
    """What a child says of its spider, once that is loaded. Raises: Misconfigured: it cannot be loaded. SpiderDied."""
    from crawlog.agents.sandbox import misconfigured

    child.load()
    child.pump()
    if child.fault is not None:
        raise misconfigured(child.fault)
    if child.loaded is None and not child.waiting:
        raise SpiderDied(f"spider_died while it was loaded: {child.died_of}")
    return child.loaded
