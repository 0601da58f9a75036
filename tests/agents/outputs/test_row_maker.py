"""Pipelines beside the sink: a fresh process makes the rows anew, and no item enters a process twice."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest.mock import Mock

import msgspec
import pytest

from crawlog.agents.outputs import row_maker
from crawlog.agents.outputs.row_maker import AGAIN_S, Closing, RowMaker
from crawlog.schemas import items
from crawlog.schemas.dead import DeadLetter
from crawlog.schemas.items import ItemsRecord
from crawlog.streams import crash_points
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import EngineError, Misconfigured, SinkBehind, SpiderDied
from crawlog.streams.sink.batch import RawItems, entry
from crawlog.streams.sink.finish import finalise
from crawlog.streams.sink.registry import sink_of
from crawlog.streams.sink.state import SinkState
from crawlog.streams.sink.state_folder import final_of, has_pipelines
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.spiders.pipelines import DropItem, Pipelines, PipelinesService, of_spider

LOG = LogIdentity("cluster", "topic")


class Seen:
    """Drops what it has seen, as Scrapy's documentation does."""

    said: ClassVar[list[str]] = []
    """Of all processes, in order."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def open_spider(self, _spider: Any) -> None:
        """A life begins."""
        self.said.append("open")

    def process_item(self, item: dict[str, Any], _spider: Any) -> dict[str, Any]:
        """Odd things happen to some items."""
        if item.get("kills"):
            raise SystemExit
        if item.get("fails"):
            raise KeyError("price")
        if item["n"] in self.ids:
            raise DropItem(f"seen {item['n']}")
        self.ids.add(item["n"])
        return item | {"by": len(self.ids)}

    def close_spider(self, _spider: Any) -> None:
        """A life ends."""
        self.said.append("close")


class Process:
    """The child, in this process."""

    goes_on = False

    def __init__(self) -> None:
        spider = SimpleNamespace(pipelines=[Seen], closed=Seen.said.append)
        encode = msgspec.json.Encoder().encode

        def make() -> Pipelines:
            return of_spider(spider, msgspec.json.decode, encode)

        self._service = PipelinesService(SimpleNamespace(facts=None, pipelines=make))
        self.is_alive = True
        self.has_ended = self.was_killed = False

    async def call(self, name: str, argument: bytes = b"") -> bytes:
        """As `PipelinesChild.call`."""
        if not self.is_alive:
            raise SpiderDied("killed")
        try:
            return await asyncio.get_running_loop().create_task(self._alive(name, argument))
        except SystemExit:
            self.is_alive = False
            raise SpiderDied("its process exited") from None

    async def _alive(self, name: str, argument: bytes) -> bytes:
        if b'"kills"' in argument:
            raise SpiderDied("its process exited with code 0")
        return await self._service.call(name, argument)

    def close(self) -> None:
        """Ended."""
        self.is_alive = False

    async def end(self) -> None:
        """Ended."""
        self.close()
        self.has_ended = True

    def kill(self) -> None:
        """Ended."""
        self.close()
        self.was_killed = True


class Bench:
    """A sink of raw items without a broker."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.goes_on = False
        self.sink = sink_of("j", str(data / "out.jsonl"))
        self.results = SinkState(data, self.sink, LOG)
        self.started: list[Process] = []
        self.dead: list[DeadLetter] = []
        self.closed_for: list[str] = []
        self.log: list[bytes] = []
        self.topic = "t.items"
        self.offset = 0
        self.maker = self._maker()

    def _maker(self) -> RowMaker:
        return RowMaker(self.results, cast("Any", self._start), cast("Any", self), goes_on=self.goes_on)

    def go_on(self, *, goes_on: bool = True) -> None:
        """By the setting `pipelines.resume`; false begins anew."""
        self.goes_on = goes_on
        self.maker = self._maker()

    async def original(self, _partition: int, offset: int) -> bytes | None:
        """The value of a record."""
        return self.log[offset]

    async def _start(self) -> Process:
        self.started.append(Process())
        return self.started[-1]

    async def bury(self, letters: list[DeadLetter]) -> None:
        """Keep dead letters."""
        self.dead += letters

    async def stop_job(self, _job: str, reason: str) -> None:
        """Keep the reason."""
        self.closed_for.append(reason)

    def give(self, url: str, *rows: dict[str, Any], page: int = 0, raw: bool = True) -> None:
        """One record."""
        record = ItemsRecord("j", url, (0, page), [msgspec.Raw(msgspec.json.encode(row)) for row in rows], raw=raw)
        value = items.encode(record)
        self.log.append(value)
        try:
            found = entry(value, self.sink, raw=self.results.meta.raw)
        except RawItems:
            self.results.begin_again(raw=True)
            found = entry(value, self.sink, raw=True)
        self.results.fold([(0, self.offset, found)])
        self.offset += 1

    async def work(self) -> None:
        """Until there is nothing to do."""
        while await self.maker._pause_s() == 0 or (self.maker._child is None and self.has_work()):
            self.maker._rests_until_s = 0

    def has_work(self) -> bool:
        """Whether raw items wait."""
        assert self.results.made
        return self.results.made.has_more and not self.maker.trouble

    def kill_all(self) -> None:
        """The worker and its child die, and another worker begins."""
        self.maker.drop()
        self.results.close()
        self.kill_all_closed()

    def kill_all_closed(self) -> None:
        """Another worker begins."""
        self.results = SinkState(self.data, self.sink, LOG)
        self.maker = self._maker()

    def rows(self) -> list[dict[str, Any]]:
        """The rows so far."""
        assert self.results.made
        return [json.loads(line) for chunk in self.results.made.chunks() for line in chunk.splitlines()]

    def numbers(self) -> list[int]:
        """Their numbers."""
        return [row["n"] for row in self.rows()]

    async def close(self) -> None:
        """The job is finished."""
        self.maker.closing = Closing({0: self.offset}, "finished")
        await self.work()


def text_of(sink: SinkSpec) -> str:
    """FILE."""
    return Path(sink.output).read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Closed at the end."""
    Seen.said = []
    made = Bench(tmp_path)
    yield made
    made.results.close()


async def test_raw_items_become_rows_behind_the_pipelines(bench: Bench) -> None:
    """In the order of the items; what is dropped gives no row and no dead letter."""
    bench.give("a", {"n": 1}, {"n": 2})
    bench.give("b", {"n": 2}, {"n": 3})
    await bench.work()
    assert bench.rows() == [{"n": 1, "by": 1}, {"n": 2, "by": 2}, {"n": 3, "by": 3}]
    assert bench.dead == []
    bench.give("c", {"n": 4}, raw=False)
    await bench.work()
    assert bench.numbers() == [1, 2, 3, 4]
    assert Seen.said == ["open"]


async def test_a_page_parsed_twice_enters_no_process_twice(bench: Bench) -> None:
    """It would meet its own id, be dropped, and lose its row."""
    bench.give("a", {"n": 1})
    await bench.work()
    bench.give("a", {"n": 1})
    bench.give("a", {"n": 1}, page=7)
    await bench.work()
    assert bench.numbers() == [1]
    assert len(bench.started) == 1


async def test_rows_are_made_anew_when_the_process_dies(bench: Bench) -> None:
    """A fresh process has an empty set: it gets all items from the first one on."""
    bench.give("a", {"n": 1})
    await bench.work()
    bench.started[-1].close()
    bench.give("b", {"n": 1}, {"n": 2})
    await bench.work()
    assert bench.numbers() == [1, 2]
    bench.kill_all()
    bench.give("c", {"n": 2}, {"n": 3})
    await bench.work()
    assert bench.numbers() == [1, 2, 3]
    assert Seen.said == ["open"] * 3


async def test_rows_are_made_anew_when_a_page_gives_other_items(bench: Bench) -> None:
    """What the first version of the page left in the set would drop items that count now."""
    bench.give("a", {"n": 1})
    bench.give("b", {"n": 1}, {"n": 2})
    await bench.work()
    assert bench.numbers() == [1, 2]
    bench.give("a", {"n": 5}, page=1)
    await bench.work()
    assert bench.numbers() == [1, 2, 5]
    assert bench.rows()[0] == {"n": 1, "by": 1}
    assert [process.was_killed for process in bench.started] == [True, False], "both may write to the same files"


async def test_by_the_setting_it_goes_on_behind_the_last_row(bench: Bench) -> None:
    """The other rows stay as they are."""
    bench.go_on()
    bench.give("a", {"n": 1})
    bench.give("b", {"n": 2})
    await bench.work()
    bench.kill_all()
    bench.give("a", {"n": 2}, page=1)
    await bench.work()
    assert bench.rows() == [{"n": 2, "by": 2}, {"n": 2, "by": 1}]


async def test_rows_of_a_job_that_is_fed_are_not_made_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no end: each kill would send all its items to a database again."""
    monkeypatch.setattr(Process, "goes_on", True)
    bench.give("a", {"n": 1})
    await bench.work()
    bench.kill_all()
    bench.give("b", {"n": 2})
    await bench.work()
    assert bench.rows() == [{"n": 1, "by": 1}, {"n": 2, "by": 1}]


async def test_an_item_that_fails_is_a_dead_letter_once(bench: Bench) -> None:
    """However often the rows are made anew; the others have their rows."""
    bench.give("a", {"n": 1}, {"n": 2, "fails": True}, {"n": 3})
    for _ in range(3):
        await bench.work()
        bench.kill_all()
        bench.give(f"b{bench.offset}", {"n": 10 + bench.offset})
    assert bench.numbers()[:2] == [1, 3]
    [letter] = bench.dead
    assert letter.error == "KeyError: 'price' (item 2 of 3 in the pipelines)"
    assert (letter.stage, letter.topic, letter.offset, letter.key) == ("sink", "t.items", 0, b"j a")
    assert "process_item" in letter.traceback
    assert items.decode(letter.value).url == "a", "a redrive sends it again"


@pytest.mark.parametrize("goes_on", [False, True])
async def test_an_item_that_failed_is_tried_again_when_its_record_comes_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """A redrive of its letter, or the next fetch of its page."""
    monkeypatch.setattr(Process, "goes_on", goes_on)
    bench.give("a", {"n": 1, "fails": True})
    await bench.work()
    monkeypatch.setattr(Seen, "process_item", lambda _self, item, _spider: {"n": item["n"]})
    bench.give("a", {"n": 1, "fails": True})
    await bench.work()
    assert bench.numbers() == [1]


async def test_an_item_that_ends_the_process_twice_is_left_out(bench: Bench) -> None:
    """It alone; it has a dead letter, and the others have rows."""
    bench.give("a", {"n": 1})
    bench.give("b", {"n": 2}, {"n": 3, "kills": True}, {"n": 4})
    bench.give("c", {"n": 5})
    await bench.work()
    assert bench.numbers() == [1, 2, 4, 5]
    [letter] = bench.dead
    assert letter.error == "spider_died: its process exited with code 0 (item 2 of 3 in the pipelines)"
    bench.kill_all()
    bench.give("d", {"n": 6})
    await bench.work()
    assert bench.numbers() == [1, 2, 4, 5, 6]
    assert len(bench.dead) == 1


async def test_they_are_closed_once_behind_all_items(bench: Bench) -> None:
    """FILE is made then, and not before."""
    bench.give("a", {"n": 1})
    await bench.work()
    assert has_pipelines(bench.data, bench.sink)
    bench.results.close()
    with pytest.raises(SinkBehind, match="pipelines"):
        finalise(bench.data, bench.sink, {0: 1}, io.BytesIO())
    bench.kill_all_closed()
    await bench.close()
    await bench.close()
    assert Seen.said == ["open", "open", "close", "finished"]
    assert bench.started[-1].has_ended, "files that it left open are whole when the job has finished"
    bench.results.close()
    assert finalise(bench.data, bench.sink, {0: 1}, io.BytesIO()) == 1
    assert text_of(bench.sink) == '{"n":1,"by":1}\n'
    bench.kill_all_closed()


@pytest.mark.parametrize("goes_on", [False, True])
async def test_what_the_pipelines_count_is_told_at_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """Each item counts once, however often the rows were made anew."""

    def stats(self: Pipelines) -> dict[str, float]:
        counted, self.__dict__["counted"] = self.__dict__.get("counted", 0), 0
        return {"item_scraped_count": counted} if counted else {}

    async def scraped(self: Pipelines, _item: object) -> None:
        self.__dict__["counted"] = self.__dict__.get("counted", 0) + 1

    monkeypatch.setattr(Pipelines, "stats", stats)
    monkeypatch.setattr(Pipelines, "scraped", scraped)
    bench.go_on(goes_on=goes_on)
    bench.give("a", {"n": 1}, {"n": 2})
    await bench.work()
    bench.kill_all()
    bench.give("b", {"n": 3})
    await bench.close()
    bench.results.close()
    finalise(bench.data, bench.sink, {0: 2}, io.BytesIO())
    final = final_of(bench.sink.folder(bench.data))
    assert final is not None
    assert final.stats == {"item_scraped_count": 3}
    bench.kill_all_closed()


async def test_a_finished_job_that_goes_on_makes_its_rows_anew(bench: Bench) -> None:
    """FILE was the file of rows; the items are kept beside the state."""
    bench.give("a", {"n": 1})
    await bench.close()
    bench.results.close()
    finalise(bench.data, bench.sink, {0: 1}, io.BytesIO())
    bench.kill_all_closed()
    bench.give("b", {"n": 1}, {"n": 2})
    await bench.close()
    bench.results.close()
    assert finalise(bench.data, bench.sink, {0: 2}, io.BytesIO()) == 2
    bench.kill_all_closed()


async def test_pipelines_without_an_item_are_opened_and_closed(tmp_path: Path) -> None:
    """A pipeline may write an empty file, as in Scrapy."""
    Seen.said = []
    bench = Bench(tmp_path)
    bench.results.close()
    bench.sink = msgspec.structs.replace(bench.sink, pipelines=True)
    bench.kill_all_closed()
    await bench.close()
    bench.results.close()
    assert Seen.said == ["open", "close", "finished"]
    assert finalise(tmp_path, bench.sink, {}, io.BytesIO()) == 0


async def test_pipelines_that_cannot_be_opened_are_told_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is away: the crawl goes on meanwhile."""
    with monkeypatch.context() as patched:
        patched.setattr(Process, "call", _refused)
        bench.give("a", {"n": 1})
        assert await bench.maker._pause_s() == 5.0
        assert bench.maker.trouble == "pipelines: OSError: no database"
    await bench.work()
    assert (bench.numbers(), bench.maker.trouble) == ([1], "")


async def test_pipelines_whose_process_dies_while_they_are_opened_cannot_be_opened(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory, or out of time: a process after the other would be started, without a word."""

    async def dies(*_: object) -> bytes:
        raise SpiderDied("spider_died: out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(Process, "call", dies)
        bench.give("a", {"n": 1})
        assert await bench.maker._pause_s() == AGAIN_S
        assert bench.maker.trouble == "pipelines: not opened: spider_died: out of memory"
    await bench.work()
    assert (bench.numbers(), bench.maker.trouble) == ([1], "")


async def test_the_rows_stay_where_the_process_dies_twice_while_the_pipelines_are_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fresh process gets all items again, and would die again. Once may be by chance."""
    whole, calls = Process.call, list[str]()

    async def call(self: Process, name: str, argument: bytes = b"") -> bytes:
        calls.append(name)
        if name == "close":
            raise SpiderDied("spider_died: out of memory")
        return await whole(self, name, argument)

    monkeypatch.setattr(Process, "call", call)
    bench.give("a", {"n": 1})
    bench.maker.closing = Closing({0: bench.offset}, "finished")
    for _ in range(10):
        await bench.maker._pause_s()
    assert calls == ["open", "rows", "close"] * 2
    assert bench.numbers() == [1]
    assert bench.results.made is not None
    assert bench.results.made.is_done


async def test_pipelines_that_close_the_spider_stop_a_job_that_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process that is opened says so. A job that has ended is closed without another order."""

    async def closes(*_: object) -> str:
        return "no database"

    monkeypatch.setattr(Pipelines, "open", closes)
    bench.give("a", {"n": 1})
    bench.started.clear()
    await bench.maker.step()
    assert bench.closed_for == ["no database"]
    await bench.close()
    bench.kill_all()
    bench.give("b", {"n": 2})
    await bench.close()
    assert len(bench.started) == 2
    assert bench.closed_for == ["no database"]


async def test_the_reason_of_pipelines_is_cut_to_what_a_record_takes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes a command in crawl.control, which the worker could not send."""

    async def closes(*_: object) -> str:
        return "no database" + " and so on" * 1_000_000

    monkeypatch.setattr(Pipelines, "open", closes)
    bench.give("a", {"n": 1})
    await bench.maker.step()
    [reason] = bench.closed_for
    assert reason.startswith("no database")
    assert len(reason) < 10_000


async def test_a_database_that_met_a_full_disk_is_not_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no write until it is opened again, and the next error would hide the cause."""
    monkeypatch.setattr(row_maker, "AGAIN_S", 0.0)
    bench.give("a", {"n": 1})
    full = Exception("IO error: No space left on device: While appending to file: 4.log: No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr(bench.results.made, "take", Mock(side_effect=full))
        async with asyncio.timeout(30):
            await bench.maker.run()
    assert (bench.maker.trouble, Seen.said) == ("pipelines: No space left on device", ["open"])


async def _refused(*_: object) -> bytes:
    raise Misconfigured("OSError: no database")


async def test_what_happens_while_the_pipelines_work_is_not_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's items are replaced while they are in the pipelines; or the state begins again."""
    bench.give("a", {"n": 1})
    whole, events = Process.call, [lambda: bench.give("a", {"n": 2}, page=1), bench.results.begin_again]

    async def call(self: Process, name: str, argument: bytes = b"") -> bytes:
        answer = await whole(self, name, argument)
        if name == "rows" and events:
            events.pop(0)()
        return answer

    monkeypatch.setattr(Process, "call", call)
    await bench.work()
    bench.offset = 0
    bench.give("a", {"n": 3})
    await bench.work()
    assert bench.numbers() == [3]


def damage(file: Path, harm: str) -> None:
    """Change the file of rows."""
    content = file.read_bytes()
    changed = {"longer": content + b'{"half', "shorter": content[:-3], "another": b"x" * len(content)}
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(changed[harm])


@pytest.mark.parametrize("harm", ["longer", "shorter", "missing", "another"])
async def test_rows_that_were_damaged_are_made_anew(bench: Bench, harm: str) -> None:
    """The items are kept."""
    for n in range(5):
        bench.give(f"u{n}", {"n": n})
    await bench.close()
    bench.results.close()
    damage(Path(f"{bench.sink.output}.partial"), harm)
    bench.kill_all_closed()
    await bench.close()
    assert bench.numbers() == [0, 1, 2, 3, 4]
    assert len(bench.started) == (1 if harm == "longer" else 2)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_kill_between_two_writes_loses_and_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """At each point of the table, with the rows made anew and going on."""

    class Killed(BaseException):
        """As SIGKILL."""

    points = ["pipelines.rows.written", "pipelines.state.written", "pipelines.closed"]

    def point(name: str) -> None:
        if name in points:
            points.remove(name)
            raise Killed

    monkeypatch.setattr(crash_points, "point", point)
    for n in range(3):
        bench.give(f"u{n}", {"n": n})
    bench.go_on(goes_on=goes_on)
    kills = 0
    while True:
        bench.maker.closing = Closing({0: 3}, "finished")
        try:
            await bench.work()
            break
        except Killed:
            kills += 1
            bench.kill_all()
    assert kills == 3
    assert bench.numbers() == [0, 1, 2]


def test_a_state_says_that_an_older_crawlog_cannot_read_it(tmp_path: Path) -> None:
    """It would take raw items for rows."""
    spec = SinkSpec("j", str(tmp_path / "o.jsonl"), pipelines=True)
    with SinkState(tmp_path, spec, LOG) as state:
        assert (state.meta.version, state.meta.raw, state.path.name) == (3, True, "items.partial")


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
async def test_rows_of_items_that_were_replaced_are_left_out_of_the_file(tmp_path: Path, name: str) -> None:
    """They stay in the partial file where the rows go on."""
    Seen.said = []
    bench = Bench(tmp_path)
    bench.results.close()
    bench.sink = sink_of("j", str(tmp_path / name))
    bench.kill_all_closed()
    bench.go_on()
    bench.give("a", {"n": 1})
    bench.give("b", {"n": 2})
    await bench.work()
    bench.give("a", {"n": 3}, page=1)
    await bench.close()
    bench.results.close()
    assert finalise(tmp_path, bench.sink, {0: 3}, io.BytesIO()) == 2
    csv = "n,by\n2,2\n3,3\n"
    assert text_of(bench.sink) == (csv if name.endswith("csv") else '{"n":2,"by":2}\n{"n":3,"by":3}\n')


@pytest.mark.parametrize(
    "trouble", [OSError(28, "No space left on device"), EngineError("the broker is away"), KeyError("x")]
)
async def test_rows_are_made_once_the_machine_can_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    """A full disk, a broker that restarts, whatever it is: the job says so, and goes on."""
    bench.give("a", {"n": 1}, {"n": 2, "fails": True})
    bury = bench.bury

    async def fails(_letters: list[DeadLetter]) -> None:
        raise trouble

    monkeypatch.setattr(bench, "bury", fails)
    assert await bench.maker._pause_s() == AGAIN_S
    assert str(trouble) in bench.maker.trouble
    monkeypatch.setattr(bench, "bury", bury)
    await bench.maker._pause_s()
    assert (bench.maker.trouble, bench.numbers(), len(bench.dead)) == ("", [1], 1)
