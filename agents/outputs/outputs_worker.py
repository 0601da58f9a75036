# long: one worker plans, reads, writes and completes its outputs in turns
"""The sink worker: writes the outputs of all jobs that belong to its partitions of crawl.items; or those of one run.

    crawl.control ─► WantedOutputs ─► which outputs, where they lie, whether they may be completed
                       └► of a job with pipelines the first one alone reads; the others are copies (`completion.py`)
    crawl.items, ALL partitions, one plain consumer, from the least needed offset
      └► by the job in the key ─► Output.take ─► write, FLUSH_S later ─► report `passed`
    the job has ended, all is in ─► FILE ─► OutputNote in crawl.control

The group `crawlog-sink` only shares partitions out: output number k belongs to the owner of partition k modulo their
count. Its records are not taken from Faust, whose buffer stays full. Outputs that get nothing cost nothing: their
states are closed, and their offsets are those of the reader.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Any

import structlog
from confluent_kafka import KafkaException

from crawlog.agents import progress
from crawlog.agents.control import StageCommands, follow
from crawlog.agents.downloads import Downloads
from crawlog.schemas.control import Control
from crawlog.schemas.progress import FLEET, MAX_ROWS_TOLD, MAX_STUCK, MAX_WAITING, Progress
from crawlog.streams import exit_codes
from crawlog.streams.cluster import log_bounds, log_identity
from crawlog.streams.errors import CrawlError, DamagedLog, RefusedOutput, RetryLater, Unusable
from crawlog.streams.log import Producer, Topics, partition_count
from crawlog.streams.recovery import ranges_text
from crawlog.streams.sink import PrivateNotes, PrivateOutputs, empty, forget_output, places_of
from crawlog.streams.sink_groups import known_sinks
from crawlog.streams.worker import CrawlApp

from .completion import Completion, leave_to_others, led_before
from .items_log import ItemRecord, ItemsLog, ItemsReader
from .notes import OutputNotes
from .output import Output, filled_again, leading_of
from .pages_output import PagesOutput, PagesOutputs
from .wanted import WantedOutput, WantedOutputs, needed_of, shares_rows

log = structlog.get_logger()

LOOK_S = 0.2  # Longest wait for records; so long is a change of a job not seen

IDLE_S = 1.0  # The same while no output is open

PASS_S = 5.0  # Time between two looks at the log's end, while no output is open

FLUSH_S = 0.3  # Longest wait of a record for others of its output

BATCH_BYTES = 8 << 20  # Bytes that wait for all outputs, at most

MOST_OPEN = 48  # States that are open at a time; pipelines add to them

REST_S = 10.0  # A state that got nothing for so long is closed

AGAIN_S = 5.0  # Pause after an output failed, as on a full disk

Key = tuple[str, str]


class OutputsWorker:
    """See the module.

    Args:
        private: The outputs of a run, which this worker alone writes; None for those of a fleet.
    """

    def __init__(self, app: CrawlApp, private: PrivateOutputs | None = None) -> None:
        self._app = app
        self._is_private = private is not None
        self._settings = app.crawl
        self._names = Topics(app.crawl.kafka.prefix)
        producer = Producer(app.crawl, f"{app.worker_name}-outputs")
        self._count = partition_count(app.crawl)
        identity = log_identity(app.crawl, self._names.items)
        self._wanted = WantedOutputs(private)
        self._downloads = Downloads(app.crawl)
        kept = PrivateNotes(app.crawl.run.data) if private is not None else None
        self._records = OutputNotes(app.crawl, self._wanted, producer, app.worker_name, kept)
        self._log = ItemsLog(app.crawl, identity, producer)
        self._pages = PagesOutputs(app.crawl, self._records, self._log)
        self.orders = StageCommands("sink")
        self.rebalance_started = self.orders.rebalance_started  # a hook of `run_stage`: it ends waits
        self._owned: set[int] = set()
        self._outputs: dict[Key, Output] = {}
        self._completions: dict[Key, Completion] = {}
        self._by_job: dict[str, list[Output]] = {}
        self._held: dict[Key, int] = {}
        self._retry: dict[str, float] = {}
        self._reader = ItemsReader(app.crawl, self._names.items)
        self._must_seek = False
        self._is_planned = False
        self._turning = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_following = False
        self._trouble = self._note = ""
        self._read_count = self._read_bytes = 0
        self._passes_at = 0.0

    async def owned(self, partitions: set[int]) -> None:
        """Take the outputs of these partitions."""
        self.orders.owned()
        self._owned = set(range(self._count)) if self._is_private and partitions else set(partitions)
        self._is_planned = False  # 1 own nothing → 2 read to the end → 3 get outputs that are not open yet
        self._wanted.changed |= set(self._wanted.names())
        if not self._is_following:
            self._is_following = True

            def heard(record: Control) -> None:
                self._downloads.heard(record)
                self._wanted.heard(record)

            follow(self._app, self.orders, heard)
            self._app.add_future(self._downloads.run())
            self._task = asyncio.create_task(self._run())

    async def revoking(self, _partitions: set[int]) -> None:
        """Write what waits for open outputs, and close all: another worker may get them. The rest is read again."""
        self._owned = set()
        async with self._turning:
            await self._pages.end()
            await self._write_all([one for one in self._outputs.values() if one.is_open])
            await self._drop(list(self._outputs))
            self._held.clear()

    async def events(self, _stream: Any) -> None:
        """The agent. It takes no record: all partitions are read by `ItemsReader`, once for all outputs."""
        await asyncio.Event().wait()

    def reports(self) -> list[Progress]:
        """How far the outputs of each partition are."""
        done = self._read_count, self._read_bytes
        every: list[Output | PagesOutputs] = [*self._outputs.values(), self._pages]
        trouble = self._trouble or next((one.trouble for one in every if one.trouble), "")
        self._note = next((one.note for one in every if one.note), self._note)
        found = progress.positions(self._app, *done, paused=self.orders.paused, trouble=trouble, note=self._note)
        for report in found:
            report.passed, report.stuck = self._passed(report.partition)
            report.rows = told_rows(
                (one for one in self._outputs.values() if one.partition == report.partition), time.monotonic()
            )
            if self._is_private:  # the run reads its note, and moves parse
                continue
            own = [one for one in self._outputs.values() if one.partition == report.partition]
            report.waiting = _waiting([*own, *self._pages.of(report.partition, self._count)])
            report.unmade = dict(sorted((item for one in own for item in self._of(one).unmade.items()), reverse=True))
        return found

    def _passed(self, partition: int) -> tuple[list[int], list[str]]:
        """By partition of crawl.items, what all required outputs have passed that belong to one partition; and jobs of
        outputs there that meet errors, which only these jobs wait for.
        """
        own = [one for one in self._outputs.values() if one.partition == partition]
        own = [one for one in own if any(it.is_required(self._settings) for it in self._of(one).every)]
        stuck = {one.wanted.job for one in own if one.is_stuck}
        stuck |= {job for (job, _), at in self._held.items() if at == partition}
        if len(stuck) > MAX_STUCK or not self._is_planned:
            return [0] * self._count, []
        own = [one for one in own if not one.is_stuck]
        read = self._reader.at
        passed = [
            min((one.passed(at, read.get(at, 0)) for one in own), default=read.get(at, 0)) for at in range(self._count)
        ]
        return passed, sorted(stuck)

    def _hold(self, outputs: Iterable[WantedOutput]) -> None:
        """Have jobs wait for these required outputs, which cannot be had now."""
        held = [one for one in outputs if one.key not in self._outputs and one.is_required(self._settings)]
        self._held |= {one.key: one.home % self._count for one in held if not one.is_settled}

    async def _run(self) -> None:
        while True:
            self._app.watchdog.beat()
            rest_s = LOOK_S
            try:
                async with self._turning:
                    rest_s = await self._turn()
                self._trouble = ""
            except DamagedLog as error:
                exit_codes.end(error)
            except (CrawlError, KafkaException, OSError) as error:
                log.warning("outputs_failed", error=str(error))
                self._trouble, rest_s = str(error).splitlines()[0], AGAIN_S
                self._must_seek = True
            except Exception as error:
                log.exception("outputs_broken", error=repr(error))
                self._trouble, rest_s = repr(error), AGAIN_S
                self._must_seek = True
            if rest_s:
                await asyncio.sleep(rest_s)

    async def _turn(self) -> float:
        """Do what is due; returns how long to rest."""
        places = {**self._held, **{key: one.partition for key, one in self._outputs.items()}}
        await self._drop(key for key, at in places.items() if at not in self._owned)  # a revocation ran out of time
        if not self.orders.works or not self._owned:
            return LOOK_S
        now = time.monotonic()
        self._wanted.look(self._settings.run.data)
        self._wanted.changed |= {job for job, at in self._retry.items() if at <= now}
        await self._plan()
        await self._complete_due()
        if not self._outputs:
            await self._idle()
            return LOOK_S if self._is_private else IDLE_S
        if self._must_seek or any(one.goes_back for one in self._outputs.values()):
            await self._seek()
        records = await asyncio.to_thread(self._reader.take, LOOK_S)
        await self._dispatch(records)
        await self._write_due()
        for partition in self._owned:
            self._app.positions.done(partition, self._reader.at.get(partition, 0))
        return 0.0

    async def _idle(self) -> None:
        """No output is open: crawl.items is not read, but passed, once all jobs in crawl.control are known."""
        if time.monotonic() < self._passes_at:
            return
        self._passes_at = time.monotonic() + (LOOK_S if self._is_private else PASS_S)
        ends = {at: end for at, (_, end) in (await self._bounds()).items()}
        if ends == self._reader.at:
            return
        if await self._records.learn():
            return
        self._reader.close()
        self._reader.at = ends
        for partition in self._owned:
            self._app.positions.done(partition, ends.get(partition, 0))

    async def _bounds(self) -> dict[int, tuple[int, int]]:
        return await asyncio.to_thread(log_bounds, self._settings, self._names.items, list(range(self._count)))

    async def _plan(self) -> None:
        """Begin, change and end outputs of jobs about which something was heard."""
        bounds: Mapping[int, tuple[int, int]] = {}
        for job in list(self._wanted.changed):
            self._wanted.changed.discard(job)
            self._retry.pop(job, None)
            try:
                if self._wanted.is_deleted(job):
                    await self._forget(job)
                every = [one for one in self._wanted.of(job) if one.home % self._count in self._owned]
                every = await self._pages.plan(job, every)
                others = [one for one in self._wanted.of(job) if one.home % self._count not in self._owned]
                await leave_to_others(self._settings, others, self._app.worker_name)
                leading = {one.wanted.output.name for one in self._by_job.get(job, ())}
                if not leading and shares_rows(every):
                    leading = await asyncio.to_thread(led_before, self._settings, every)
                mine = needed_of(every, leading)
                keys = {one.key for one in mine}
                await self._drop(key for key in (*self._outputs, *self._held) if key[0] == job and key not in keys)
                for output in self._by_job.get(job, ()):
                    await self._of(output).keep_copies({name for _, name in keys})
                is_alone = sum(not one.is_refused for one in mine if one.spec.pipelines) <= 1
                for wanted in mine:
                    bounds = bounds or await self._bounds()
                    if not await self._want(wanted, bounds, is_alone=is_alone):
                        self._hold(mine)
                        break
            except BaseException:  # RocksDB's errors have no class of their own
                self._wanted.changed.add(job)
                raise
        self._is_planned = self._is_planned or not self._wanted.changed

    async def _want(self, wanted: WantedOutput, bounds: Mapping[int, tuple[int, int]], *, is_alone: bool) -> bool:
        """Begin an output, or go on with it as it is wanted now. One that cannot be had ends, until it can.

        Args:
            is_alone: Whether no other output of the job is wanted here.

        Returns: False where another process has its state yet, and no other output may lead in its place.
        """
        key = wanted.key
        try:
            await self._begin(wanted, bounds, is_alone=is_alone)
        except RefusedOutput as error:
            await self._drop([key])
            if (leading := leading_of(wanted, self._by_job)) is not None:
                self._of(leading).copies.pop(wanted.output.name, None)
            if await self._records.note(wanted, error=str(error), is_refused=True):
                log.warning("output_refused", job=wanted.job, output=wanted.shown[:200], error=str(error))
        except (CrawlError, OSError) as error:
            await self._drop([key])
            self._hold([wanted])
            if (leading := leading_of(wanted, self._by_job)) is not None:
                await self._of(leading).want_copy(wanted, None)
            self._retry[wanted.job] = time.monotonic() + AGAIN_S
            if await self._records.failed(wanted, error):
                log.warning("output_not_written", job=wanted.job, output=wanted.shown, error=str(error))
            return not (wanted.spec.pipelines and isinstance(error, RetryLater))
        return True

    async def _begin(self, wanted: WantedOutput, bounds: Mapping[int, tuple[int, int]], *, is_alone: bool) -> None:
        spec = await asyncio.to_thread(wanted.sink, self._settings)
        known = self._outputs.get(wanted.key)
        if known is not None and known.spec == spec:
            known.want(wanted)
            return
        await self._drop([wanted.key])
        if (leading := leading_of(wanted, self._by_job)) is not None:
            await self._of(leading).want_copy(wanted, spec)
            return
        starts = places_of(wanted.spec)
        places = {at: starts(at, first, end) for at, (first, end) in bounds.items()}
        beat = self._app.watchdog.beat
        made = Output(self._log, beat, wanted, spec, wanted.home % self._count, places, self._downloads)
        completion = Completion(self._settings, made, self._records, beat)
        is_made = await completion.was_made(notes=is_alone)
        if is_made and is_alone:
            return
        ends = dict(enumerate(wanted.end.items)) if wanted.end is not None else {}
        await made.begin({at: max(self._reader.at.get(at, 0), end) for at, end in ends.items()} if is_made else None)
        self._outputs[wanted.key], self._completions[wanted.key] = made, completion
        self._by_job.setdefault(wanted.job, []).append(made)
        read = self._reader.at
        made.goes_back = any(offset < read.get(at, 0) for at, offset in made.seen.items())
        self._must_seek |= made.goes_back or not self._reader.is_open

    def _of(self, output: Output) -> Completion:
        """What completes an output."""
        return self._completions[output.wanted.key]

    async def _drop(self, keys: Iterable[Key]) -> None:
        for key in list(keys):
            self._held.pop(key, None)
            output = self._outputs.pop(key, None)
            if output is not None:
                del self._completions[key]
                self._by_job[key[0]].remove(output)
                if not self._by_job[key[0]]:
                    del self._by_job[key[0]]
                await output.close()

    async def _forget(self, job: str) -> None:
        """Remove what a deleted job has left in this folder, whoever wrote it; FILE stays."""
        await self._drop([key for key in (*self._outputs, *self._held) if key[0] == job])
        for sink in await asyncio.to_thread(known_sinks, self._settings.run.data):
            if sink.is_fleet and sink.job == job:
                await asyncio.to_thread(forget_output, self._settings.run.data, sink)

    async def _seek(self) -> None:
        """Read on at the least offset that an output needs."""
        read, bounds = self._reader.at, await self._bounds()
        for output in self._outputs.values():
            if not output.goes_back:
                output.seen = {at: max(seen, read.get(at, 0)) for at, seen in output.seen.items()}
            past = {at: seen for at, seen in output.seen.items() if seen > bounds[at][1]}
            if past:
                log.warning("sink_goes_back", job=output.spec.job, reason="the log ends before", offsets=past)
                self._app.positions.cuts |= past
                await output.go_back({at: bounds[at][0] for at in past})
            seen = output.seen
            gone = {at: range(seen[at], first) for at, (first, _) in bounds.items() if seen.get(at, first) < first}
            if gone:
                log.error("records_gone", topic=self._names.items, offsets=ranges_text(gone), job=output.spec.job)
                await output.lose(gone)
        starts = {}
        for at, (first, end) in bounds.items():
            needed = min((one.seen[at] for one in self._outputs.values() if at in one.seen), default=end)
            starts[at] = min(max(needed, first), end)
        await asyncio.to_thread(self._reader.seek, starts)
        self._must_seek = False
        for output in self._outputs.values():
            output.goes_back = False

    async def _dispatch(self, records: list[ItemRecord]) -> None:
        """Give each record to the outputs of its job. Records of other jobs are passed.

        Garbage goes to one output, which makes it a dead letter: one of its job, or if its key names none, of the owner
        of its partition.
        """
        unknown = {job for record in records if (job := record.job) and not self._wanted.knows(job)}
        if unknown and await self._records.learn():
            self._must_seek = True  # a job that was new may have rows among these
        for record in records:
            self._read_count += 1
            self._read_bytes += len(record.value or b"")
            job = record.job
            takers = self._by_job.get(job, [])
            if not job and record.partition in self._owned:
                takers = list(self._outputs.values())
            for output in takers if len(takers) == 1 or record.is_sound else takers[:1]:
                output.take(record)
        if not self._must_seek:
            self._reader.passed(records)
        else:
            await self._plan()

    async def _write_due(self) -> None:
        waiting = [one for one in self._outputs.values() if one.pending or one.must_open]
        now, size = time.monotonic(), sum(one.pending_bytes for one in waiting)
        is_full = size >= BATCH_BYTES
        await self._write_all(one for one in waiting if is_full or now - one.pending_since >= FLUSH_S)
        for output in self._outputs.values():
            await self._of(output).note_stores()
            if not output.pending and output.is_mended:
                await self._records.note(output.wanted, rev=0)
        at_rest = [one for one in self._outputs.values() if one.is_open and not one.pending]
        for output in at_rest:
            only_waits = output.wanted.is_settled and self._of(output).only_waits
            if (only_waits or not output.has_pipelines) and output.is_fed and now - output.written_at > REST_S:
                await output.close()

    async def _write_all(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if not output.pending and not output.must_open:
                continue
            await self._make_room()
            try:
                await output.write(self._reader.at)
            except Unusable as error:
                await self._begin_again(output, error)
            except (CrawlError, OSError) as error:
                output.error = f"{output.partial}: {getattr(error, 'strerror', None) or error}"
                output.pending_since = time.monotonic() + AGAIN_S
                log.warning("sink_write_failed", job=output.spec.job, error=output.error)
                if self._owned:  # else the next owner says how it goes on
                    await self._records.failed(output.wanted, error, output.error)

    async def _make_room(self) -> None:
        """Close the state that got nothing for longest, if very many are open."""
        is_open = [one for one in self._outputs.values() if one.is_open and not one.has_pipelines]
        if len(is_open) >= MOST_OPEN:
            await min(is_open, key=lambda one: one.written_at).close()

    async def _begin_again(self, output: Output, error: Unusable) -> None:
        """Set a damaged state aside; it is filled from the log again."""
        log.warning("sink_set_aside", job=output.spec.job, why=str(error))
        await output.close()
        aside = await asyncio.to_thread(empty, self._settings.run.data, output.spec)
        self._note = filled_again(error, aside)
        wanted, key = output.wanted, output.wanted.key
        await self._drop([key])
        self._wanted.changed.add(wanted.job)

    async def _complete_due(self) -> None:
        """Complete the outputs of jobs that have ended, and note it."""
        now = time.monotonic()
        for output in list(self._outputs.values()):
            end = output.wanted.end
            if end is None or not self._is_due(output, end.items, now):
                continue
            try:
                is_done = await self._of(output).complete(end, self._reader.at)
            except Unusable as error:
                await self._begin_again(output, error)
            except (CrawlError, OSError) as error:
                output.tries_at = output.pending_since = now + AGAIN_S
                output.error = str(error)
                log.warning("output_not_complete", job=output.spec.job, error=str(error))
                await self._of(output).failed(error)
            else:
                if is_done:
                    await self._drop([output.wanted.key])
                elif output.wanted.is_settled:  # copies cannot be written
                    output.tries_at = now + AGAIN_S

    def _is_due(self, output: Output, ends: tuple[int, ...], now: float) -> bool:
        """Whether all is in, and something can be made of it."""
        read = self._reader.at
        waits = output.goes_back or self._must_seek or output.tries_at > now
        if waits or (output.wanted.is_settled and self._of(output).only_waits):
            return False
        return all(output.passed(at, read.get(at, 0)) >= end for at, end in enumerate(ends))


def told_rows(outputs: Iterable[Output], now: float) -> dict[str, tuple[int, int]]:
    """By job, its epoch and the rows of its output: of outputs that were written last, and of others in turns."""
    found = [one for one in outputs if one.rows is not None and one.wanted.fed is None]
    found.sort(key=lambda one: -one.written_at)
    half = MAX_ROWS_TOLD // 2
    if (others := len(found) - half) > half:
        first = half + int(now / progress.REST_S) * half % others
        found = found[:half] + found[first : first + half]
    return {one.wanted.job: (one.wanted.epoch, one.rows or 0) for one in reversed(found)}


def _waiting(outputs: Iterable[Output | PagesOutput]) -> dict[str, dict[str, int]]:
    """By job and output, how many records wait; the outputs that are most behind."""
    behind = ((count, one.wanted.job, name) for one in outputs for name, count in one.waiting.items())
    found: dict[str, dict[str, int]] = {}
    for count, job, name in nlargest(MAX_WAITING, behind):
        found.setdefault(job, {})[name] = count
    return found


def attach(app: CrawlApp) -> None:
    """Make an app the writer of a run's outputs, if the environment names them, or of a fleet's."""
    private = PrivateOutputs.read(os.environ)
    worker = OutputsWorker(app, private)
    app.sink_name = private.id if private is not None else FLEET
    app.run_stage("sink", worker)
