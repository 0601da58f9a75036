"""What a worker's consumer takes at a time and its agent gets: bounded by bytes, and never another assignment's."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException, KafkaError
from faust.transport.drivers import aiokafka as driver
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from crawlog.streams.worker import consumer as consumer_module
from crawlog.streams.worker.consumer import Consumer, KafkaTransport, ReadingTask, Stream
from crawlog.streams.worker.member import (
    LARGE_BYTES,
    POLLED_BYTES,
    POLLED_PIECE,
    REFUSED_REST_S,
    REFUSED_TIMES,
    REST_WAIT_MS,
    ConsumerThread,
    paced,
)

MIB = 1 << 20


class Log:
    """Stands in for aiokafka: gives what it has without waiting, an error where one is put."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *sizes: int | Exception) -> None:
        self.left = deque(sizes)
        self.timeouts: list[float | None] = []
        self._coordinator = SimpleNamespace(check_errors=lambda: None)
        self._subscription = SimpleNamespace(reassignment_in_progress=False)
        self._thread: Any = ConsumerThread.__new__(ConsumerThread)
        watchdog = SimpleNamespace(look_at_log=self._look)
        app: Any = SimpleNamespace(conf=SimpleNamespace(id="g"), watchdog=watchdog)
        self._thread.app = app
        self.looked = 0
        monkeypatch.setattr(driver.AIOKafkaConsumerThread, "_fetch_records", self._fetch)

    async def _fetch(self, _log: Any, _active: Any, *, max_records: int, **more: float) -> dict[str, list[Any]]:
        self.timeouts.append(more["timeout"])
        found: list[Any] = []
        while self.left and len(found) < max_records:
            one = self.left[0]
            if isinstance(one, Exception):
                if not found:
                    self.left.popleft()
                    raise one
                break
            found.append(SimpleNamespace(value=bytes(self.left.popleft())))  # type: ignore[arg-type]  # an int
        return {"tp": found} if found else {}

    async def _look(self) -> None:
        self.looked += 1

    async def polled(self, most: int = 64) -> int:
        """How many records come at once."""
        found = await self._thread._fetch_records(self, set(), timeout=1.0, max_records=most)
        return sum(len(records) for records in found.values())


@pytest.mark.parametrize(
    ("sizes", "most", "polled"),
    [
        ([1000] * 100, 64, 64),
        ([1000] * 100, 2, 2),
        ([1000] * 3, 64, 3),
        ([], 64, 0),
        ([8 * MIB] * 64, 64, POLLED_PIECE),
        ([MIB] * 64, 64, POLLED_BYTES // MIB),
    ],
    ids=["small ones", "no more than asked", "all there is", "nothing", "pages of 8 MiB", "a MiB each"],
)
async def test_records_are_polled_by_number_and_by_bytes(
    sizes: list[int], most: int, polled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only the first look waits for any."""
    log = Log(monkeypatch, *sizes)
    assert await log.polled(most) == polled
    assert log.timeouts[0] == 1.0
    assert set(log.timeouts[1:]) <= {0}


async def test_pages_of_some_megabytes_come_one_by_one_once_the_first_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of them wait in memory, at most once in a row."""
    log = Log(monkeypatch, *[8 * MIB] * 6, 1, *[1000] * 8)
    assert [await log.polled(8) for _ in range(5)] == [4, 1, 1, 8, 1]


async def test_an_error_behind_records_does_not_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their positions have moved on; an error in front is raised."""
    log = Log(monkeypatch, *[1] * POLLED_PIECE, KafkaError(), 1)
    assert await log.polled() == POLLED_PIECE
    log.left.appendleft(KafkaError())
    with pytest.raises(KafkaError):
        await log.polled()


async def test_a_corrupt_record_is_raised_at_once_with_all_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client may be past records of other partitions that it did not hand out: later ones would hide them."""
    log = Log(monkeypatch, *[1] * POLLED_PIECE, CorruptRecordException(), 1)
    with pytest.raises(CorruptRecordException):
        await log.polled()
    assert log.looked == 1


async def test_fetches_that_are_refused_rest_and_have_the_log_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks again at once, and says nothing: a damaged batch cost a core, and was never told."""
    rests: list[float] = []
    looks: list[int] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    async def refused(*_: object) -> bool:
        return False

    async def look() -> None:
        looks.append(len(rests))

    monkeypatch.setattr("crawlog.streams.worker.member.asyncio.sleep", sleep)
    monkeypatch.setattr("crawlog.streams.worker.member.time.monotonic", lambda: 0.0)
    ask = paced(SimpleNamespace(_proc_fetch_request=refused), "fetch", look)
    for _ in range(REFUSED_TIMES):
        await ask("assignment", 1, "request")
    assert rests == [REFUSED_REST_S] * (REFUSED_TIMES - 1)
    assert looks == [REFUSED_TIMES - 1]


async def test_records_of_two_assignments_do_not_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look would wait for the rebalance, with records in hand that are another owner's by then."""
    log = Log(monkeypatch, *[1] * 64)
    log._subscription.reassignment_in_progress = True
    assert await log.polled() == POLLED_PIECE


async def test_a_fetch_waits_for_much_only_while_much_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind records for 64 KiB, 50 ms at most; when that brought none, for the first byte, and longer."""
    fetched = iter([(0.0, False), (9.0, True), (9.05, False), (9.06, True), (9.07, False)])
    now, asked = 0.0, []

    async def fetch(*_request: Any) -> bool:
        nonlocal now
        now, has_brought = next(fetched)
        return has_brought

    monkeypatch.setattr("crawlog.streams.worker.member.time.monotonic", lambda: now)
    fetcher = SimpleNamespace(_proc_fetch_request=fetch)
    ask = paced(fetcher, "fetch")
    for _ in range(5):
        await ask("assignment", 1, "request")
        asked.append((fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms))
    rests, works = (1, REST_WAIT_MS), (64 << 10, 50)
    assert asked == [rests, works, rests, works, works]


async def test_a_large_record_waits_until_the_buffer_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count of 16 would be 128 MiB; small ones behind it need not wait."""
    buffer: asyncio.Queue[int] = asyncio.Queue(16)
    monkeypatch.setattr(consumer_module, "LARGE_LOOK_S", 0.0)
    consumer: Any = Consumer.__new__(Consumer)

    flow = SimpleNamespace(is_active=lambda: True)
    consumer.app = SimpleNamespace(consumer_generation_id=1, topics=[SimpleNamespace(queue=buffer)], flow_control=flow)
    consumer.scheduler = SimpleNamespace(iterate=lambda sizes: [(None, SimpleNamespace(value=bytes(s))) for s in sizes])
    consumer.flow_active = True
    consumer._to_message = lambda _tp, record: len(record.value)
    handing = asyncio.create_task(consumer._hand_over([LARGE_BYTES, 1, 2, LARGE_BYTES, 3]))
    for waiting in ([LARGE_BYTES, 1, 2], [LARGE_BYTES, 3]):
        for _ in range(20):
            await asyncio.sleep(0)
        assert [buffer.get_nowait() for _ in range(buffer.qsize())] == waiting
    await handing


class Records:
    """A stream of one buffer, and what it asks of its app."""

    def __init__(self) -> None:
        self.flow = FlowControlEvent(initially_suspended=False)
        self.queue: ThrowableQueue[Any] = ThrowableQueue(16, flow_control=self.flow, clear_on_resume=True)
        reader: Any = Consumer.__new__(Consumer)
        reader.in_hand, reader.has_room = None, lambda: None
        self.app: Any = SimpleNamespace(consumer_generation_id=2, flow_control=self.flow, reader=reader)
        reader.app, self.reader = self.app, reader
        stream: Any = Stream.__new__(Stream)
        stream.app, stream.channel = self.app, SimpleNamespace(queue=self.queue)
        self.given = stream.records()

    def put(self, *generations: int) -> None:
        """Records of these assignments."""
        for generation in generations:
            self.queue.put_nowait(SimpleNamespace(generation_id=generation))


async def test_an_agent_gets_only_records_of_the_assignment_it_has() -> None:
    """A rebalance may begin while some wait; whether one is in hand decides how long it waits."""
    records = Records()
    records.put(1, 2, 2)
    assert (await anext(records.given)).generation_id == 2
    assert records.reader.in_hand is not None
    records.flow.suspend()
    following = asyncio.create_task(anext(records.given))
    for _ in range(5):
        await asyncio.sleep(0)
    assert records.queue.empty()
    assert not following.done()
    assert records.reader.in_hand is None
    records.flow.resume()
    records.put(2)
    await following
    records.queue._throw(StopAsyncIteration())
    assert [record async for record in records.given] == []
    assert records.reader.in_hand is None


async def test_records_leave_the_loop_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that never waits would hold up heartbeats and requests as long as its buffer is filled."""
    monkeypatch.setattr(consumer_module, "TURN_S", 0.0)
    records = Records()
    records.put(2, 2, 2)
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    await anext(records.given)
    assert turns == [1]


async def test_what_was_taken_before_a_rebalance_is_not_handed_over_after_it() -> None:
    """The rest waits for room while the partitions are given up; the new assignment reads it again."""
    records = Records()
    reader, room = records.reader, asyncio.Event()
    records.app.topics = [SimpleNamespace(queue=records.queue)]
    reader.flow_active, reader._room = True, room
    reader.scheduler = SimpleNamespace(iterate=lambda sizes: [(None, SimpleNamespace(value=bytes(s))) for s in sizes])
    reader._to_message = lambda _tp, _record: SimpleNamespace(generation_id=records.app.consumer_generation_id)
    handing = asyncio.create_task(reader._hand_over([1] * (records.queue.maxsize + 3)))
    while not records.queue.full():  # noqa: ASYNC110  # a queue does not tell
        await asyncio.sleep(0)
    records.flow.suspend()
    records.flow.clear()
    reader.flow_active = False
    room.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not handing.done()
    records.app.consumer_generation_id += 1
    reader.flow_active = True
    records.flow.resume()
    await handing
    assert records.queue.empty()


async def test_a_reader_that_is_stopped_amid_a_rebalance_has_not_crashed() -> None:
    """Two workers told to stop at once: the first one's leaving has the group rebalance while the second one stops."""
    reading = asyncio.Event()

    async def drain(_fetcher: ReadingTask) -> None:
        reading.set()
        await asyncio.Event().wait()

    consumer: Any = SimpleNamespace(_drain_messages=drain)
    app: Any = SimpleNamespace(reader=consumer, consumer=consumer, rebalancing=True)
    fetcher = KafkaTransport.Fetcher(app)
    task = asyncio.ensure_future(type(fetcher)._fetcher(fetcher))
    await reading.wait()
    task.cancel()
    await task
    assert not fetcher.crashed
