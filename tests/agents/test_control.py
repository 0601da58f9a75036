"""Commands of the operator: what they say, whom they mean, and that a crawl obeys them."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from crawlog.agents import control as tail
from crawlog.agents.control import StageCommands
from crawlog.cli.operate_text import effect
from crawlog.commands import control as cli
from crawlog.jobs.live import Frame, line
from crawlog.schemas import control
from crawlog.schemas.control import Command
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.fleet import BadRecord
from crawlog.streams.fleet import tail as tails
from crawlog.streams.jobs import EndSteps, FleetReports
from crawlog.streams.jobs.commands import FREE, Commands, Orders, host_of
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.machine import Kafka
from crawlog.streams.settings.settings import Settings
from tests.support.control_records import control_of
from tests.support.fetching import Web, World, running

A, B = "http://a.com/", "http://b.com/"


def command(action: str, delay_s: float = 0.0, **target: Any) -> Command:
    """A command that holds together."""
    return msgspec.convert({"action": action, "delay_s": delay_s} | target, Command).check()


# What stands in the log


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"command/job/x", b'{"v":1,"action":"pause","job":"x"}', None),
        (b"command/host/http://a.com:80", b'{"v":1,"action":"slow","host":"http://a.com:80","delay_s":2}', None),
        (b"command/stage/parse", b'{"v":1,"action":"resume","stage":"parse"}', None),
        (b"command/job/a/b", b'{"v":1,"action":"stop","job":"a/b"}', None),
        (b"command/job/x", b'{"v":1,"action":"pause","job":"y"}', "is not that of its record, b'command/job/y'"),
        (b"command/job/x", b'{"v":1,"action":"explode","job":"x"}', "action"),
        (b"command/job/x", b'{"v":1,"action":"pause"}', "exactly one"),
        (b"command/job/x", b'{"v":1,"action":"pause","job":"x","host":"a.com"}', "exactly one"),
        (b"command/job/x", b'{"v":1,"action":"block","job":"x"}', "a job cannot be given 'block'"),
        (b"command/stage/sink", b'{"v":1,"action":"slow","stage":"sink","delay_s":1}', "fetch"),
        (b"command/stage/all", b'{"v":1,"action":"pause","stage":"all"}', "no stage 'all'"),
        (b"command/host/a.com", b'{"v":1,"action":"slow","host":"a.com"}', "delay_s"),
        (b"command/host/a.com", b'{"v":1,"action":"slow","host":"a.com","delay_s":-1}', "delay_s"),
        (b"command/host/a.com", b'{"v":1,"action":"slow","host":"a.com","delay_s":1e308}', "delay_s"),
        (b"command/host/A.com", b'{"v":1,"action":"pause","host":"A.com"}', "lower case"),
        (b"command/host/a.com/x", b'{"v":1,"action":"pause","host":"a.com/x"}', "no host"),
        (b"command/job/x", b'{"v":2,"action":"pause","job":"x"}', "v"),
        (b"command/job/x", b"pause", "JSON"),
        (b"command/nothing/x", None, "nothing is known"),
        (b"command", None, "nothing is known"),
    ],
)
def test_a_command_is_what_its_key_says_or_garbage(key: bytes, value: bytes | None, error: str | None) -> None:
    """Garbage is for crawl.dead, and says why."""
    if error is None:
        record = control.decode(key, value)
        assert isinstance(record, Command)
        assert control.key(record) == key
        assert control.decode(key, control.encode(record)) == record
    else:
        with pytest.raises(ValueError, match=error):
            control.decode(key, value)


def test_a_tombstone_ends_a_command() -> None:
    """As `kcat -Z` writes it."""
    assert control.decode(b"command/host/.a.com", None) == Command("resume", host=".a.com")
    assert control.decode(b"job/x", None) is None


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("http://A.com/", "http://a.com"),
        ("https://a.com:443", "https://a.com"),
        ("https://a.com:80", "https://a.com:80"),
        ("a.com:80", "a.com:80"),
        (".Example.com", ".example.com"),
        ("bücher.de", "xn--bcher-kva.de"),
        ("[::1]", "[::1]"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("https://a.com./", "https://a.com"),
    ],
)
def test_a_host_may_be_written_as_people_do(text: str, host: str) -> None:
    """The log has one spelling of it."""
    assert host_of(text) == host


@pytest.mark.parametrize("text", ["", ".", "http://", "ftp://a.com", "a b", "a.com/x", "me@a.com", "a.com?x"])
def test_what_is_no_host_is_refused(text: str) -> None:
    """With the forms that there are."""
    with pytest.raises(ValueError, match="name:port"):
        host_of(text)


@pytest.mark.parametrize(
    ("action", "options", "error"),
    [
        ("pause", {}, "exactly one"),
        ("block", {"job": "x"}, "cannot be given"),
        ("slow", {"host": "a.com"}, "delay"),
        ("pause", {"host": "a.com/x"}, "no host"),
        ("pause", {"host": "a.com", "job": "x"}, "exactly one"),
    ],
)
def test_options_that_make_no_sense_are_refused(action: str, options: dict[str, str], error: str) -> None:
    """Before anything is started."""
    with pytest.raises(Misconfigured, match=error):
        cli.wanted(action, options.get("job", ""), options.get("host", ""), "", 0.0)


# Whom they mean


@pytest.mark.parametrize(
    ("said", "key", "meant"),
    [
        ("http://a.com", "http://a.com:80", True),
        ("http://a.com:80", "http://a.com:80", True),
        ("http://a.com", "https://a.com:443", False),
        ("a.com", "https://a.com:443", True),
        ("a.com", "http://a.com:8080", True),
        ("a.com:8080", "http://a.com:8080", True),
        ("a.com:8080", "http://a.com:80", False),
        ("a.com", "http://www.a.com:80", False),
        (".a.com", "http://www.a.com:80", True),
        (".a.com", "http://a.com:80", True),
        (".a.com", "http://xa.com:80", False),
        ("http://[::1]", "http://[::1]:80", True),
        ("[::1]", "http://[::1]:8080", True),
    ],
)
def test_a_host_has_several_names(said: str, key: str, meant: bool) -> None:
    """With scheme, without, and those of its parents."""
    assert Commands([command("pause", host=said)]).of_host(key).paused == meant


def test_the_newest_command_for_a_target_holds() -> None:
    """And is one: slowing what is paused lets it go on, slowly."""
    commands = Commands([command("pause", job="x"), command("slow", 3.0, job="x")])
    assert commands.of_job("x") == Orders(slow_s=3.0)
    commands.take(command("resume", job="x"))
    assert commands.of_job("x") == FREE
    assert commands.in_force == []


def test_two_spellings_of_a_host_are_one_target() -> None:
    """The default port may be left out."""
    commands = Commands([command("pause", host="http://a.com"), command("resume", host="http://a.com:80")])
    assert commands.in_force == []


def test_commands_for_several_names_of_a_host_hold_together() -> None:
    """Each ends by itself."""
    commands = Commands([command("slow", 3.0, host=".a.com"), command("slow", 5.0, host="a.com")])
    commands.take(command("block", host="http://a.com"))
    assert commands.of_host("http://a.com:80") == Orders(paused=True, stopped=True, slow_s=5.0)
    commands.take(command("unblock", host="http://a.com"))
    assert commands.of_host("http://a.com:80") == Orders(slow_s=5.0)


# What a worker does


def give(world: World, action: str, delay_s: float = 0.0, **target: Any) -> None:
    """A command arrives."""
    world.stage.orders.take(command(action, delay_s, **target))


async def rested(world: World, *urls: str, for_s: float = 0.2) -> None:
    """These are not asked for."""
    await asyncio.sleep(for_s)
    assert not {url for _, url in world.web.asked} & set(urls)


@pytest.mark.parametrize(
    "target", [{"job": "j"}, {"stage": "fetch"}, {"host": "a.com"}, {"host": "http://a.com:80"}, {"host": ".com"}]
)
async def test_a_pause_holds_until_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: dict[str, Any]
) -> None:
    """Whatever is paused; what is queued stays queued, and nobody spins over it."""
    async with running(tmp_path, monkeypatch) as world:
        give(world, "pause", **target)
        world.find(A, A + "2")
        began = time.process_time()
        await rested(world, A)
        assert time.process_time() - began < 0.1
        [report] = world.stage.reports()
        assert (report.jobs["j"].queued, report.jobs["j"].paused) == (2, 2)
        assert report.paused == ("stage" in target)
        give(world, "resume", **target)
        await world.all_done(A, A + "2")
        assert world.stage.reports()[0].jobs["j"].paused == 0


async def test_a_paused_host_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told as the part that waits."""
    async with running(tmp_path, monkeypatch) as world:
        give(world, "pause", host="a.com")
        world.find(A, A + "2", B)
        await world.all_done(B)
        await rested(world, A)
        counts = world.stage.reports()[0].jobs["j"]
        assert (counts.queued, counts.paused) == (2, 2)


async def test_a_pause_lets_requests_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was under way becomes a result, what waited for its turn is not asked for any more."""
    async with running(tmp_path, monkeypatch, Web({"any": 0.1})) as world:
        world.find(A, A + "2")
        await world.until(lambda: world.web.asked)
        give(world, "pause", job="j")
        await world.all_done(A)
        await rested(world, A + "2")


async def test_a_paused_job_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even on the same host."""
    async with running(tmp_path, monkeypatch) as world:
        world.job("k")
        give(world, "pause", job="j")
        world.find(A)
        world.find(A + "k", job="k")
        await world.all_done(A + "k")
        await rested(world, A)


async def test_a_stopped_job_is_nobodys_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So its run can end; the queue stays."""
    async with running(tmp_path, monkeypatch) as world:
        give(world, "stop", job="j")
        world.find(A)
        await rested(world, A)
        counts = world.stage.reports()[0].jobs["j"]
        assert (counts.queued, counts.held, counts.paused) == (0, 1, 0)
        give(world, "resume", job="j")
        await world.all_done(A)


@pytest.mark.parametrize("host", ["a.com", "http://a.com:80", ".com"])
async def test_what_is_blocked_is_held_until_unblock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """What is queued and what comes: it stays queued, is nobody's work, and is fetched after `unblock`."""
    urls = [f"{A}{n}" for n in range(5)]
    async with running(tmp_path, monkeypatch) as world:
        world.job("k")
        give(world, "block", host=host)
        world.find(*urls[:3])
        world.find(*urls[3:4], job="k")
        give(world, "slow", 0.001, stage="fetch")  # another command, while the block is in force
        world.find(*urls[4:])
        await rested(world, *urls)
        counts = world.stage.reports()[0].jobs
        assert {name: (one.queued, one.held, one.paused) for name, one in counts.items()} == {
            "j": (0, 4, 0),
            "k": (0, 1, 0),
        }
        give(world, "unblock", host=host)
        await world.all_done(*urls)
        assert {how[0] for how in world.became().values()} == {"fetched"}
        assert [(one.queued, one.held) for one in world.stage.reports()[0].jobs.values()] == [(0, 0), (0, 0)]


async def test_a_blocked_host_is_not_even_asked_for_its_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does another one wait for it."""
    async with running(tmp_path, monkeypatch, robots__obey=True) as world:
        give(world, "block", host="a.com")
        world.find(A, B)
        await world.all_done(B)
        await rested(world, A)
        assert [url for _, url in world.web.asked] == ["http://b.com:80/robots.txt", B]
        assert A not in world.became()


@pytest.mark.parametrize(("action", "end"), [("block", "unblock"), ("pause", "resume")])
async def test_a_command_holds_what_was_handed_out_and_not_asked_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, end: str
) -> None:
    """1 dispatched, waits for something else → 2 the command → 3 its turn: it goes back, and is no result."""
    turn = asyncio.Event()

    async def waits(_: object) -> None:
        await turn.wait()

    async with running(tmp_path, monkeypatch) as world:
        monkeypatch.setattr(world.tasks._sitemaps, "told", waits)
        world.find(A)
        await world.until(lambda: world.fetcher.places)
        give(world, action, host="a.com")
        turn.set()
        await world.until(lambda: not world.fetcher.places)
        assert (world.web.asked, world.became()) == ([], {})
        give(world, end, host="a.com")
        await world.all_done(A)


@pytest.mark.parametrize("target", [{"job": "j"}, {"host": "a.com"}, {"stage": "fetch"}])
async def test_slow_lengthens_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: dict[str, Any]) -> None:
    """From the command on, a full rest first; and its end is heard at once, however long the rest was."""
    urls = [f"{A}{n}" for n in range(4)]
    async with running(tmp_path, monkeypatch) as world:
        began = time.monotonic()
        give(world, "slow", 0.2, **target)
        world.find(*urls[:3])
        await world.all_done(*urls[:3])
        times = [at for at, _ in world.web.asked]
        assert min(later - earlier for earlier, later in zip([began, *times], times, strict=False)) > 0.19
        give(world, "slow", 3600.0, **target)
        world.find(urls[3])
        await rested(world, urls[3])
        give(world, "resume", **target)
        await world.all_done(*urls)


async def test_nothing_is_fetched_before_the_commands_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any restart: those of the past are read to their end first, and only what they come to counts."""
    monkeypatch.setattr(StageCommands, "caught_up", lambda _self: None)
    async with running(tmp_path, monkeypatch) as world:
        give(world, "block", host="a.com")
        give(world, "unblock", host="a.com")
        give(world, "pause", host="b.com")
        world.find(A, B)
        await rested(world, A, B)
        monkeypatch.undo()
        world.stage.orders.caught_up()
        await world.all_done(A)
        await rested(world, B)
        assert world.became()[A][0] == "fetched"


async def test_a_paused_stage_tells_the_watchdog_and_leaves_when_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record in hand is not taken when a rebalance begins: it is read again."""
    monkeypatch.setattr(tail, "BEAT_S", 0.02)
    orders, beats = StageCommands("parse"), 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    orders.take(command("pause", stage="parse"))
    orders.caught_up()
    waiting = asyncio.create_task(orders.admitted(beat))
    async with asyncio.timeout(60):
        while beats < 2:  # noqa: ASYNC110  # it says so again and again
            await asyncio.sleep(0.01)
    assert (waiting.done(), orders.paused) == (False, True)
    orders.rebalance_started()
    assert await waiting is False
    orders.owned()
    waiting = asyncio.create_task(orders.admitted(beat))
    await asyncio.sleep(0)
    orders.take(command("resume", stage="parse"))
    assert await waiting is True


async def test_a_process_that_is_paused_alone_works_when_both_pauses_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stage's pause is another command. Nothing is applied before all older commands are known."""
    applied: list[bool] = []
    orders = StageCommands("parse", lambda _: applied.append(orders.works))
    orders.hold(held=True)
    assert applied == []
    orders.take(command("pause", stage="parse"))
    orders.caught_up()
    orders.take(command("resume", stage="parse"))
    orders.hold(held=False)
    assert applied == [False, False, True]


class Reading:
    """Stands in for the consumer of crawl.control: has one record, then breaks."""

    def __init__(self, *_: object) -> None:
        self.left = [Message(topic="crawl.control", partition=0, offset=0, key=b"command/job/x", value=b"{}")]

    def consume(self, _count: int, _timeout_s: float) -> list[Message]:
        """The record, then what nobody expects."""
        if self.left:
            return [self.left.pop()]
        raise ZeroDivisionError

    def assign(self, _places: object) -> None:
        """Nothing."""

    pause = resume = assign

    def close(self) -> None:
        """Nothing."""


async def test_a_worker_that_can_hear_no_more_commands_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor starts one that can; it would go on, and obey no pause, no block and no stop."""
    monkeypatch.setattr(tails, "Consumer", Reading)
    ends: list[tuple[str, str]] = []
    watchdog = SimpleNamespace(end=lambda why, _cause, **fields: ends.append((why, fields["error"])))
    app: Any = SimpleNamespace(crawl=Settings(kafka=Kafka(bootstrap="127.0.0.1:1")), watchdog=watchdog)
    tail.follow(app, StageCommands("parse"))
    async with asyncio.timeout(60):
        while not ends:  # noqa: ASYNC110  # a thread tells it
            await asyncio.sleep(0.01)
    assert ends == [("control_unread", "ZeroDivisionError()")]


async def test_a_worker_whose_position_in_crawl_control_is_lost_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes once, and no record after it. A lost position in crawl.progress costs only what was there."""
    positions: list[tuple[str, int]] = []

    class Lost(Reading):
        def __init__(self, *_: object) -> None:
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
            names = "crawl.control", "crawl.progress"  # the last one comes first
            self.left = [Message(topic=name, partition=0, error=error) for name in names]

        incremental_unassign = Reading.assign

        def incremental_assign(self, places: list[TopicPartition]) -> None:
            positions.extend((place.topic, place.offset) for place in places)

    monkeypatch.setattr(tails, "Consumer", Lost)
    ends: list[Exception] = []
    settings = Settings(kafka=Kafka(bootstrap="127.0.0.1:1"))
    following = tail.ControlThread(settings, Topics("crawl."), lambda _: None, lambda _: None, failed=ends.append)
    following.start(asyncio.get_running_loop())
    assert following._thread is not None
    await asyncio.to_thread(following._thread.join, 60)
    assert positions == [("crawl.progress", OFFSET_END)]
    assert [type(end) for end in ends] == [KafkaException]


async def test_no_record_of_crawl_control_ends_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever breaks its reader: each worker would read it again, from the beginning, and end."""

    class AfterTheEnd(Reading):
        def __init__(self, *_: object) -> None:
            super().__init__()
            end = KafkaError(KafkaError._PARTITION_EOF)
            self.left.append(Message(topic="crawl.control", partition=0, error=end))  # the last one comes first

    monkeypatch.setattr(tails, "Consumer", AfterTheEnd)
    monkeypatch.setattr("crawlog.streams.fleet.tail.control.decode", lambda *_: 1 // 0)
    found: list[BadRecord] = []
    ends: list[Exception] = []
    settings = Settings(kafka=Kafka(bootstrap="127.0.0.1:1"))
    tail.ControlThread(settings, Topics("crawl."), lambda _: None, found.append, failed=ends.append).start(
        asyncio.get_running_loop()
    )
    async with asyncio.timeout(60):
        while not (ends and found):  # noqa: ASYNC110  # a thread tells it
            await asyncio.sleep(0.01)
    assert [garbage.error for garbage in found] == ["ZeroDivisionError: integer division or modulo by zero"]


def test_a_worker_that_has_ended_needs_no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop is closed before the thread that reads them hears of it."""
    monkeypatch.setattr(tails, "Consumer", Reading)
    loop, ends = asyncio.new_event_loop(), list[Exception]()
    loop.close()
    settings = Settings(kafka=Kafka(bootstrap="127.0.0.1:1"))
    following = tail.ControlThread(settings, Topics("crawl."), lambda _: None, failed=ends.append)
    following.start(loop)
    assert following._thread is not None
    following._thread.join(60)
    assert ends == []


# What is shown


def reported(stage: str = "fetch", **values: Any) -> FleetReports:
    """A picture of one report."""
    picture = FleetReports()
    picture.take(Progress("w", stage, 0, 1.0, **values))
    return picture


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (reported(jobs={"j": JobCounts(queued=3)}), ""),
        (reported(jobs={"j": JobCounts(queued=3, paused=3)}), "paused"),
        (reported(jobs={"j": JobCounts(queued=3000, paused=2000)}), "2,000 of them paused"),
        (reported("parse", paused=True), "parse paused"),
    ],
)
def test_a_pause_is_shown(picture: FleetReports, words: str) -> None:
    """With the command that tells more."""
    frame = Frame("j", 1.0, picture.counts("j"), 0.0, {}, [], picture.paused("j"))
    assert picture.paused("j") == words
    assert ("control list" in line(frame)) == bool(words)


def test_a_paused_job_is_not_finished() -> None:
    """Its URLs are queued, whoever keeps them."""
    picture = reported(offset=9, jobs={"j": JobCounts(queued=1, paused=1)})
    assert not EndSteps("j", (1,)).step(picture, lambda _: (0,))


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (Command("pause", job="j"), "workers obey"),
        (Command("pause", job="default"), "workers obey"),
        (Command("pause", job="k"), "no such job is known yet"),
        (Command("resume", host="a.com:80"), "workers obey"),
        (Command("resume", host="http://a.com"), "nothing was in force"),
        (Command("unblock", host="a.com"), "nothing was in force"),
        (Command("block", host="b.com"), "workers obey"),
    ],
)
def test_a_command_for_what_is_not_there_says_so(command: Command, told: str) -> None:
    """A name that was mistyped, or another name of the host, would else look like a success."""
    said = control_of(control.JobCopy("j", JobSpec()), Command("pause", host="a.com:80"))
    assert effect(cli.given(said, command)).startswith(told)
