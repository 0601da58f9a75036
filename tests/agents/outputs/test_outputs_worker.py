"""The fleet's sink workers on a real broker: who writes which output, kills, many outputs, ends, refusals."""

import io
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
import pytest

from crawlog.schemas import control, items
from crawlog.schemas.control import Finished, JobCopy, OutputNote
from crawlog.schemas.items import ItemsRecord
from crawlog.schemas.job_orders import OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.control import read_control, write_control
from crawlog.streams.fleet import FleetView
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics, partition_count
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings, to_environ
from crawlog.streams.sink.private import PrivateOutputs
from crawlog.streams.sink.state import SinkState
from crawlog.streams.sink.state_folder import state_of
from crawlog.streams.sink_groups import known_sinks
from tests.support.processes import Process, forked

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class Fleet:
    """Sink workers, and a log that a test writes as commands, coordinator and parse would."""

    def __init__(self, settings: Settings, data: Path) -> None:
        ensure_topics(settings)
        run = settings.run.model_copy(update={"data": data})
        kafka = settings.kafka.model_copy(update={"session_timeout_s": 3.0})  # that is how long a dead worker is missed
        sink = settings.sink.model_copy(update={"outputs": {"shop": str(data / "shop-{job}.csv")}})
        self.settings = settings.model_copy(update={"run": run, "kafka": kafka, "sink": sink})
        self.data = data
        self.topics = Topics(settings.kafka.prefix)
        self.producer = Producer(settings, "test")
        self.count = partition_count(settings)
        self.started: list[Process] = []

    def worker(self, name: str = "sink-0", **environ: str) -> Process:
        """A new worker process."""
        given = os.environ | to_environ(self.settings) | {"CRAWLOG_WORKER": name, "CRAWLOG_SINK": ""} | environ
        started = forked(WORKER, Path.cwd(), given, sys.__stderr__ or sys.stderr)
        self.started.append(started)
        return started

    def job(self, name: str, *outputs: OutputSpec, rev: int = 1, state: str = "running", reason: str = "") -> None:
        """A job's record, as crawl.control has it."""
        spec = msgspec.structs.replace(JobSpec(), outputs=outputs, rev=rev, state=state, reason=reason)
        write_control(self.producer, self.topics, [JobCopy(name, spec)])

    def rows(self, job: str, numbers: range) -> None:
        """One row for each URL."""
        for n in numbers:
            url = f"http://a.example/{n}"
            record = ItemsRecord(job, url, (0, n), [msgspec.Raw(b'{"n": %d}' % n)])
            key = items.key(job, url)
            self.producer.send(self.topics.items, items.encode(record), key=key, partition=n % self.count)
        assert self.producer.flush(30)

    def end(self, name: str, *outputs: OutputSpec, rev: int = 2, state: str = "finished", reason: str = "") -> None:
        """The job's end, as the coordinator writes it."""
        self.job(name, *outputs, rev=rev, state=state, reason=reason)
        bounds = log_bounds(self.settings, self.topics.items, list(range(self.count)))
        ends = tuple(end for _, (_, end) in sorted(bounds.items()))
        finished = Finished(name, time.time(), reason=reason or state, items=ends, rev=rev)
        write_control(self.producer, self.topics, [finished])

    def note(self, job: str, output: str) -> OutputNote | None:
        """What became of an output."""
        return self.notes({job: OutputSpec(output)})[job]

    def notes(self, outputs: Mapping[str, OutputSpec]) -> dict[str, OutputNote | None]:
        """What became of an output of each job, by job."""
        said = read_control(self.settings, self.topics)
        return {job: said.output(job, one.name) for job, one in outputs.items()}

    def until(
        self, is_so: Callable[[], object], missing: Callable[[], object] = lambda: "", limit_s: float = 90
    ) -> None:
        """Wait; after the limit `missing` says for what."""
        end = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < end, (missing(), [one.poll() for one in self.started])
            time.sleep(0.1)

    def is_noted(self, job: str, output: str, rev: int) -> bool:
        """Whether the output was completed after this revision."""
        note = self.note(job, output)
        return note is not None and note.rev == rev

    def unnoted(self, outputs: Mapping[str, OutputSpec], rev: int) -> dict[str, OutputNote | None]:
        """The newest notes about outputs, by job, that were not completed after this revision."""
        return {job: note for job, note in self.notes(outputs).items() if note is None or note.rev != rev}

    def numbers(self, job: str, name: str) -> list[int]:
        """The rows of FILE, or of another file of the job."""
        path = self.data / "outputs" / job / name
        return [json.loads(line)["n"] for line in path.read_text().splitlines()]

    def written(self) -> int:
        """Bytes in all files so far."""
        return sum(path.stat().st_size for path in self.data.glob("outputs/*/*"))


@pytest.fixture
def fleet(cluster: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """Topics and a data folder, no worker yet."""
    made = Fleet(cluster, tmp_path / "data")
    made.data.mkdir(mode=0o700)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


JSONL = OutputSpec("rows.jsonl")

ENDS = ("finish.noted", "finish.renamed", "output.made", "output.noted")
"""Crash points between the last row and the next thing to do."""

WORKER = """
import os
from crawlog.streams import app, crash_points
if spec := os.environ.get(crash_points.VARIABLE):
    crash_points.point = crash_points._armed(spec)  # the forked process has imported it already
app.worker('sink')
"""


def test_two_workers_share_the_outputs_and_a_kill_hands_them_over(fleet: Fleet) -> None:
    """Each row is in its file once, though a worker is killed while it writes."""
    outputs = tuple(OutputSpec(f"{number}.jsonl") for number in range(fleet.count))
    fleet.job("j", *outputs)
    first, _second = fleet.worker("sink-0"), fleet.worker("sink-1")
    fleet.rows("j", range(500))
    fleet.until(fleet.written)
    first.kill()
    fleet.rows("j", range(400, 1000))
    fleet.end("j", *outputs)
    fleet.until(lambda: all(fleet.is_noted("j", one.name, 2) for one in outputs))
    for output in outputs:
        assert sorted(fleet.numbers("j", output.name)) == list(range(1000))
        note = fleet.note("j", output.name)
        assert note is not None
        assert (note.rows, note.place) == (1000, str(fleet.data / "outputs" / "j" / output.name))
    assert not list(fleet.data.glob("outputs/j/*.partial"))


@pytest.mark.long
def test_fifty_outputs_at_once_and_each_job_has_its_own_folder(fleet: Fleet) -> None:
    """In different formats; a declared output lies where the worker's settings say."""
    jobs = [f"j{number}" for number in range(50)]
    names = {job: OutputSpec("shop", declared=True) if job == "j49" else JSONL for job in jobs}
    for job in jobs:
        fleet.job(job, names[job])
    fleet.worker()
    for job in jobs:
        fleet.rows(job, range(5))
    for job in jobs:
        fleet.end(job, names[job])
    fleet.until(lambda: not fleet.unnoted(names, 2), lambda: fleet.unnoted(names, 2))
    assert all(sorted(fleet.numbers(job, "rows.jsonl")) == list(range(5)) for job in jobs[:-1])
    head, *rows = (fleet.data / "shop-j49.csv").read_text().split()
    assert (head, sorted(rows)) == ("n", [*map(str, range(5))])  # of several partitions, in any order


def test_a_resumed_job_is_completed_again_a_cancelled_one_stays_partial_a_deleted_one_leaves_nothing(
    fleet: Fleet,
) -> None:
    """The note names the revision of the end; a worker that begins anew does not do it again."""
    fleet.job("j", JSONL)
    worker = fleet.worker()
    fleet.rows("j", range(3))
    fleet.end("j", JSONL)
    fleet.until(lambda: fleet.is_noted("j", "rows.jsonl", 2))
    fleet.job("j", JSONL, rev=3)
    fleet.rows("j", range(2, 6))
    fleet.end("j", JSONL, rev=4)
    fleet.until(lambda: fleet.is_noted("j", "rows.jsonl", 4))
    assert sorted(fleet.numbers("j", "rows.jsonl")) == list(range(6))
    fleet.job("c", JSONL)
    fleet.rows("c", range(3))
    fleet.end("c", JSONL, state="cancelled")
    fleet.until(lambda: fleet.is_noted("c", "rows.jsonl", 2))
    note = fleet.note("c", "rows.jsonl")
    assert note is not None
    assert note.is_partial
    assert sorted(fleet.numbers("c", "rows.jsonl.partial")) == [0, 1, 2]
    assert not (fleet.data / "outputs/c/rows.jsonl").exists()
    before = fleet.note("j", "rows.jsonl")
    worker.kill()
    fleet.worker("sink-1")
    fleet.job("c", JSONL, rev=3, state="deleted")
    fleet.until(lambda: not (fleet.data / "outputs/c/rows.jsonl.partial").exists())
    fleet.until(lambda: {one.job for one in known_sinks(fleet.data)} == {"j"})
    assert fleet.note("j", "rows.jsonl") == before


def test_the_file_of_a_job_that_its_spider_closed_is_made_whatever_reason_it_gave(fleet: Fleet) -> None:
    """Scrapy's own reason for `raise CloseSpider()` is `cancelled`, which is one of our states too."""
    fleet.job("j", JSONL)
    fleet.worker()
    fleet.rows("j", range(3))
    fleet.end("j", JSONL, state="stopped", reason="cancelled")
    fleet.until(lambda: fleet.is_noted("j", "rows.jsonl", 2))
    note = fleet.note("j", "rows.jsonl")
    assert note is not None
    assert not note.is_partial
    assert sorted(fleet.numbers("j", "rows.jsonl")) == [0, 1, 2]


def test_the_file_of_a_job_that_the_operator_stopped_is_made_when_it_was_resumed_and_ends(fleet: Fleet) -> None:
    """Until then its rows are not all rows."""
    fleet.job("j", JSONL)
    fleet.worker()
    fleet.rows("j", range(3))
    fleet.end("j", JSONL, state="stopped", reason="operator")
    fleet.until(lambda: fleet.is_noted("j", "rows.jsonl", 2))
    note = fleet.note("j", "rows.jsonl")
    assert note is not None
    assert note.is_partial
    assert sorted(fleet.numbers("j", "rows.jsonl.partial")) == [0, 1, 2]
    assert not (fleet.data / "outputs/j/rows.jsonl").exists()
    fleet.job("j", JSONL, rev=3)
    fleet.rows("j", range(3, 5))
    fleet.end("j", JSONL, rev=4)
    fleet.until(lambda: fleet.is_noted("j", "rows.jsonl", 4))
    assert sorted(fleet.numbers("j", "rows.jsonl")) == list(range(5))


def test_an_output_is_completed_whoever_dies(fleet: Fleet, tmp_path: Path) -> None:
    """At each step between the last row and the note; one worker dies at each."""
    spent = tmp_path / "spent"
    spent.mkdir()
    for point in ENDS:
        fleet.job(point, JSONL)
        dying = fleet.worker(CRAWLOG_CRASH=f"{spent} {point}:1")
        fleet.rows(point, range(20))
        fleet.end(point, JSONL)
        assert dying.wait(60) == -9
        assert (spent / point).exists()
    fleet.worker()
    fleet.until(lambda: all(fleet.is_noted(point, "rows.jsonl", 2) for point in ENDS))
    assert all(sorted(fleet.numbers(point, "rows.jsonl")) == list(range(20)) for point in ENDS)
    assert not list(fleet.data.glob("outputs/*/*.partial"))


def test_an_output_with_a_path_that_a_stranger_wrote_into_the_topic_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    """No file is made outside the folder, and others are written all the same; so too behind a link."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (fleet.data / "outputs").mkdir(mode=0o700)
    (fleet.data / "outputs" / "link").symlink_to(outside)
    evil = ["../../outside/a.jsonl", str(outside / "b.jsonl"), "..", ".hidden.jsonl", "a\n.jsonl", "x" * 300 + ".jsonl"]
    for number, name in enumerate(evil):
        fleet.job(f"e{number}", OutputSpec(name), JSONL)
    fleet.job("link", JSONL)
    raw = control.encode(JobCopy("../outside", msgspec.structs.replace(JobSpec(), outputs=(JSONL,))))
    fleet.producer.send(fleet.topics.control, raw, key=b"job/../outside", partition=0)
    fleet.worker()
    jobs = ["link", "../outside", *(f"e{number}" for number in range(len(evil)))]
    for job in jobs:
        fleet.rows(job, range(2))
    for number, name in enumerate(evil):
        fleet.end(f"e{number}", OutputSpec(name), JSONL)
    fleet.until(lambda: all(fleet.is_noted(f"e{number}", "rows.jsonl", 2) for number in range(len(evil))))
    for job, name in [("link", "rows.jsonl"), *((f"e{number}", name[:200]) for number, name in enumerate(evil))]:
        note = fleet.note(job, name)
        assert note is not None
        assert note.error
    said = log_bounds(fleet.settings, fleet.topics.control, [0])[0][1]
    fleet.rows("e0", range(2, 4))
    fleet.end("link", JSONL)
    fleet.until(lambda: log_bounds(fleet.settings, fleet.topics.control, [0])[0][1] > said)
    assert log_bounds(fleet.settings, fleet.topics.control, [0])[0][1] <= said + 2 + 1, "a refusal is said once"
    assert list(outside.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "data"}


def test_an_output_that_cannot_be_written_holds_its_own_job_only(fleet: Fleet) -> None:
    """A misspelt name, where the file of another job is the same worker's to write, with the same number."""
    fleet.job("typo", OutputSpec("rows.jsn", declared=True))
    fleet.job("good", JSONL)
    fleet.worker()
    fleet.until(lambda: (note := fleet.note("typo", "rows.jsn")) and note.error)
    for job in ("typo", "good"):
        fleet.rows(job, range(3))
    bounds = log_bounds(fleet.settings, fleet.topics.items, list(range(fleet.count)))
    ends = tuple(end for _, (_, end) in sorted(bounds.items()))

    def has_written(job: str) -> bool:
        view = FleetView.read(fleet.settings)
        return view.look(lambda state: state.picture.has_written(job, 0, ends))

    fleet.until(lambda: has_written("good"))
    assert not has_written("typo")


class Private:
    """The sink worker of a run: three outputs of job j, one of them standard output."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.folder = fleet.data.parent
        self.own = PrivateOutputs("j", (str(self.folder / "a.jsonl"), str(self.folder / "b.csv"), "-"))

    def worker(self, **environ: str) -> Process:
        """A new worker process."""
        return self.fleet.worker(**self.own.environ(), **environ)

    def send(self, numbers: range) -> None:
        """Records of 700 URLs, some of them newer pages of the same URL."""
        for n in numbers:
            url = f"http://a.example/{n % 700}"
            value = items.encode(ItemsRecord("j", url, (0, n), [msgspec.Raw(b'{"n": %d}' % n)]))
            at = n % 700 % self.fleet.count
            self.fleet.producer.send(self.fleet.topics.items, value, key=items.key("j", url), partition=at)
        assert self.fleet.producer.flush(30)

    def size(self) -> int:
        """Bytes of the rows so far."""
        return sum(path.stat().st_size for path in self.folder.glob("*.partial"))

    def has_moved(self, size: int, process: Process) -> bool:
        """Whether the worker has written, or ended."""
        return self.size() != size or process.poll() is not None

    def end(self, rev: int = 2) -> None:
        """The job's end, which the run has released."""
        self.fleet.end("j", rev=rev)
        end = read_control(self.fleet.settings, self.fleet.topics).records[b"finished/j"]
        assert isinstance(end, Finished)
        self.own.release(self.fleet.data, end)

    def is_complete(self, rev: int = 2) -> bool:
        """Whether all outputs are noted as complete behind the job's end."""
        notes = self.own.notes(self.fleet.data)
        return {name for name, note in notes.items() if note.rev == rev and not note.error} == {*self.own.outputs}

    def rows(self) -> dict[int, int]:
        """The rows by URL number, the same ones in all outputs."""
        out = io.BytesIO()
        self.own.pour(self.fleet.data, out)
        poured = [json.loads(line)["n"] for line in out.getvalue().splitlines()]
        lines = [json.loads(line)["n"] for line in (self.folder / "a.jsonl").read_text().splitlines()]
        _, *cells = (self.folder / "b.csv").read_text().split()
        assert sorted(poured) == sorted(lines) == sorted(map(int, cells))
        rows = {n % 700: n for n in lines}
        assert len(rows) == len(lines), "a URL has one row"
        return rows


@pytest.fixture
def private(fleet: Fleet) -> Private:
    """No worker yet."""
    return Private(fleet)


def test_the_outputs_of_a_run_are_made_and_no_record_names_them(private: Private) -> None:
    """The newest row of each URL, in all formats; outputs of a fleet's job are left to its workers."""
    fleet = private.fleet
    process = private.worker()
    fleet.job("j", JSONL)
    private.send(range(1000))
    fleet.until(private.size)
    private.end()
    fleet.until(private.is_complete)
    assert private.rows() == {n % 700: n for n in range(1000)}
    assert not list(private.folder.glob("*.partial"))
    assert not (fleet.data / "outputs").exists()
    said = read_control(fleet.settings, fleet.topics)
    assert not [key for key in said.records if key.startswith(b"output/")]
    process.terminate()
    assert process.wait(60) == 0


def test_a_runs_worker_killed_at_any_instant_loses_and_doubles_nothing(private: Private) -> None:
    """Five kills while it writes, then each output has the newest row of each URL."""
    private.fleet.job("j")
    private.send(range(3000))
    chance, newest = random.Random(7), 2999
    for _ in range(5):
        size, process = private.size(), private.worker()
        private.fleet.until(partial(private.has_moved, size, process))
        time.sleep(chance.random() * 0.1)
        process.kill()
        process.wait()
        more = chance.randrange(1500)
        private.send(range(newest + 1, newest + 1 + more))
        newest += more
    private.worker()
    private.end()
    private.fleet.until(private.is_complete)
    rows = private.rows()
    assert rows == {n % 700: n for n in range(newest + 1)}


@pytest.mark.long
def test_the_outputs_of_a_run_are_completed_whichever_write_its_worker_dies_behind(
    private: Private, tmp_path: Path
) -> None:
    """One worker dies at each step from the first row to the note."""
    spent = tmp_path / "spent"
    spent.mkdir()
    private.fleet.job("j")
    private.send(range(900))
    private.end()
    for point in ("sink.rows.writing", "sink.rows.written", "sink.state.written", *ENDS):
        dying = private.worker(CRAWLOG_CRASH=f"{spent} {point}:1")
        assert dying.wait(60) == -9
        assert (spent / point).exists()
    private.worker()
    private.fleet.until(private.is_complete)
    assert private.rows() == {n % 700: n for n in range(900)}
    assert not list(private.folder.glob("*.partial"))


def test_a_file_that_was_changed_is_made_again_by_the_next_run(private: Private) -> None:
    """What an earlier run noted does not count: its worker looks at the file itself."""
    fleet = private.fleet
    fleet.job("j")
    private.send(range(5))
    private.end()
    process = private.worker()
    fleet.until(private.is_complete)
    process.terminate()
    process.wait(60)
    (private.folder / "a.jsonl").write_text("edited")
    (private.folder / "b.csv").unlink()
    private.own.forget(fleet.data)
    assert private.own.notes(fleet.data) == {}
    private.worker()
    private.end(rev=3)
    fleet.until(lambda: private.is_complete(rev=3))
    assert sorted(private.rows()) == [*range(5)]


def test_no_file_is_made_before_the_run_has_released_it(private: Private) -> None:
    """The run first looks whether the log has lost records: rows of a damaged crawl stay in FILE.partial."""
    fleet = private.fleet
    fleet.job("j")
    private.send(range(5))
    private.worker()
    fleet.end("j")
    fleet.until(private.size)
    end = read_control(fleet.settings, fleet.topics).records[b"finished/j"]
    assert isinstance(end, Finished)
    private.own.release(fleet.data, msgspec.structs.replace(end, rev=1))  # of an earlier end
    private.send(range(5, 10))
    size = private.size()
    fleet.until(lambda: private.size() > size)
    assert private.own.notes(fleet.data) == {}
    private.end()
    fleet.until(private.is_complete)
    assert sorted(private.rows()) == [*range(10)]


def test_garbage_on_the_topic_ends_in_the_dead_letters_once(private: Private) -> None:
    """Also under a key that names no job; the rows around it are in the file."""
    fleet = private.fleet
    fleet.job("j")
    for key in (None, b"odd"):
        fleet.producer.send(fleet.topics.items, b"\xff garbage", key=key, partition=0)
    fleet.producer.send(fleet.topics.items, b"\xff of j", key=b"j http://a.example/x", partition=0)
    private.send(range(10))
    process = private.worker()
    fleet.until(private.size)
    process.terminate()
    assert process.wait(60) == 0
    private.worker()
    private.end()
    fleet.until(private.is_complete)
    assert len(private.rows()) == 10
    end = log_bounds(fleet.settings, fleet.topics.dead, [0])[0][1]
    dead = [record.value() or b"" for record in read_records(fleet.settings, fleet.topics.dead, 0, 0, end)]
    assert sorted(dead) == [b"\xff garbage", b"\xff garbage", b"\xff of j"]


def test_a_damaged_state_of_a_run_is_filled_again_and_its_file_is_whole(private: Private) -> None:
    """Bytes flipped in its tables between two lives."""
    fleet = private.fleet
    fleet.job("j")
    private.send(range(700))
    process = private.worker()
    fleet.until(private.size)
    process.terminate()
    assert process.wait(60) == 0
    for sink in known_sinks(fleet.data):
        SinkState(fleet.data, sink, None).close()  # the last rows are in a table, too
        for table in state_of(sink.folder(fleet.data)).glob("*.sst"):
            content = bytearray(table.read_bytes())
            content[len(content) // 3 :: 7] = b"\x5a" * len(content[len(content) // 3 :: 7])
            table.write_bytes(content)
    private.worker()
    private.end()
    fleet.until(private.is_complete)
    assert private.rows() == {n: n for n in range(700)}
