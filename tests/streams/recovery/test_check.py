"""Conservation: pages that dones name are in the log, and every page came to something; what is missing is named."""

import json
import time

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from crawlog import outcome
from crawlog.cli import stored_text, summary_text
from crawlog.jobs.run_checks import LossCheck
from crawlog.jobs.summary import Summary
from crawlog.schemas import control
from crawlog.schemas import items as i
from crawlog.schemas import pages as pg
from crawlog.schemas import urls as u
from crawlog.schemas.control import Finished, JobCopy
from crawlog.schemas.dead import DeadLetter
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.streams import groups
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import consumer_config, kafka_config
from crawlog.streams.engine.engine import Engine
from crawlog.streams.errors import EngineError
from crawlog.streams.groups.commits import OURS
from crawlog.streams.jobs import FleetReports
from crawlog.streams.log import provision, topics
from crawlog.streams.recovery import power_cut
from crawlog.streams.recovery.check import Check
from crawlog.streams.recovery.damage import CutPartition, Known, cuts_against
from crawlog.streams.recovery.ledger import GonePage, Ledger, page_name
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.canonical import fingerprint

A, B = 1, 2
"""Two URLs."""


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


def ledger(*pages: int, parsed: int = 99, start: int = 0) -> Ledger:
    """Pages of these URLs, from `start` on."""
    made = Ledger(start, start + len(pages), parsed)
    for at, name in enumerate(pages, start):
        made.page(at, name)
    return made


def test_the_items_of_a_get_with_a_callback_are_those_of_its_url() -> None:
    """Their record has no identity, as a GET is its URL; its page has one."""
    url = "http://a.test/"
    assert page_name("j", url, fingerprint(url)) == page_name("j", url) != page_name("j", url, 7)


def test_a_page_behind_the_logs_end_is_gone() -> None:
    """Its done is named with both offsets."""
    one = ledger(A)
    one.done(A, 10, 0)
    one.done(B, 11, 1)
    assert one.gone() == [GonePage(11, 1)]


def test_an_offset_that_was_given_out_again_is_another_page() -> None:
    """The done of the page that was there before names a page that is gone."""
    one = ledger(B)
    one.done(A, 10, 0)
    one.done(B, 11, 0)
    assert one.gone() == [GonePage(10, 0)]


@pytest.mark.parametrize("how", ["asked again", "fetched later"])
def test_a_page_that_was_asked_for_since_is_not_missing(how: str) -> None:
    """By a found with `again`, or as a later done of its URL names a page that is there."""
    one = ledger(B, A)
    one.done(A, 10, 0)
    if how == "asked again":
        one.again(A)
    else:
        one.done(A, 12, 1)
    assert one.gone() == []


def test_a_page_that_was_trimmed_is_not_missing() -> None:
    """It lies before the log's start, and is counted."""
    one = ledger(A, start=5)
    one.done(B, 10, 4)
    assert (one.gone(), one.trimmed) == ([], 1)


def test_a_page_that_was_trimmed_before_it_was_parsed_is_missing() -> None:
    """Until its URL is asked again, or a later page of it was parsed and trimmed."""
    one = ledger(start=2, parsed=1)
    one.done(A, 10, 0)
    one.done(B, 11, 1)
    assert (one.trimmed, one.gone()) == (1, [GonePage(11, 1)])
    one.again(B)
    assert one.gone() == []


def test_a_page_that_the_operator_left_out_needs_no_item() -> None:
    """By a replay that skips it, or by --accept-skipped."""
    one = ledger(A, B, start=3)
    one.skipped(0, 4)
    assert one.unparsed() == [4]


def test_a_page_without_an_item_is_missing() -> None:
    """One that an item or a dead letter names is not; an item of another URL does not count for it."""
    one = ledger(A, B, 3, 4)
    one.named(0, A)
    one.named(1)
    one.named(2, A)
    assert one.unparsed() == [2, 3]


@pytest.mark.parametrize("parsed", [1, 2])
def test_a_page_is_not_missing_once_a_later_one_of_its_url_came_to_something(parsed: int) -> None:
    """Or where that one is not parsed yet."""
    one = ledger(A, A, parsed=parsed)
    one.named(1, A)
    assert one.unparsed() == []


def test_an_earlier_page_of_its_url_does_not_stand_for_a_page() -> None:
    """What a server sent last is what counts."""
    one = ledger(A, A)
    one.named(0, A)
    assert one.unparsed() == [1]


def test_a_page_whose_url_was_asked_again_afterwards_is_not_missing() -> None:
    """The one that came of it is."""
    one = ledger(A, A)
    one.done(A, 10, 0)
    one.again(A)
    assert one.unparsed() == []
    one.done(A, 12, 1)
    assert one.unparsed() == [1]


def test_what_names_sitemaps_needs_no_item() -> None:
    """A record of a robots.txt is no page that was fetched."""
    one = Ledger(0, 1, 1)
    one.page(0, A, needs_item=False)
    assert one.unparsed() == []


ENDS = {"pages": (5, 9), "items": (7,)}


def test_a_partition_that_ends_before_a_known_offset_was_cut() -> None:
    """It is named once, with the highest offset and who knows of it; one that reaches all of them was not."""
    known = [
        Known("pages", 0, 6, "the group parse"),
        Known("pages", 0, 8, "a done"),
        Known("pages", 1, 9, "a done"),
        Known("items", 0, 7, "the sink"),
        Known("items", 4, 7, "a partition that is not there"),
    ]
    (cut,) = cuts_against(known, ENDS)
    assert str(cut) == "pages[0] ends at offset 5, and a done was at 8"


SITE = "http://site.com"
PAGES = 6
WAIT_S = 60.0


class Log:
    """A log of one partition's crawl, written by hand."""

    def __init__(self, settings: Settings) -> None:
        provision.ensure_topics(settings)
        self.settings = settings
        self.names = topics.Topics(settings.kafka.prefix)
        self._producer = Producer(kafka_config(settings) | {"batch.num.messages": 1})

    def write(
        self,
        topic: str,
        value: bytes,
        headers: list[tuple[str, str | bytes | None]] | None = None,
        key: bytes | None = None,
    ) -> None:
        """One record, in a batch of its own."""
        self._producer.produce(topic, value, key, partition=0, headers=headers)
        assert self._producer.flush(30) == 0

    def page(self, number: int, epoch: int = 0) -> None:
        """A page."""
        header = pg.encode(pg.PageMeta(f"{SITE}/{number}", "j", epoch=epoch, http=200))
        self.write(self.names.pages, b"body" * 100, headers=[(pg.HEADER, header)])

    def done(self, number: int, page: int) -> None:
        """The done of one."""
        result = u.Result(f"{SITE}/{number}", number, "fetched", page=(0, page))
        self.write(self.names.urls, u.encode(u.UrlsRecord(job="j", results=[result])))

    def item(self, number: int, page: int) -> None:
        """What came of one."""
        self.write(self.names.items, i.encode(i.ItemsRecord("j", f"{SITE}/{number}", (0, page), [])))

    def crawl(self) -> None:
        """Pages that are all well, the last of them a dead letter, and parsed."""
        for number in range(PAGES):
            self.page(number)
            self.done(number, number)
            if number < PAGES - 1:
                self.item(number, number)
        letter = DeadLetter(self.names.pages, 0, PAGES - 1, "parse", "it broke")
        self.write(self.names.dead, b"", headers=[*letter.headers()])
        self.parsed(PAGES)

    def parsed(self, end: int) -> None:
        """Parse has come to an offset."""
        consumer = Consumer(consumer_config(self.settings, topics.stage_group(self.settings, "parse")))
        consumer.commit(offsets=[TopicPartition(self.names.pages, 0, end, OURS)], asynchronous=False)
        consumer.close()

    def said(self) -> tuple[int, list[dict[str, object]]]:
        """What `crawlog verify --log --json` says is missing."""
        check = Check(self.settings)
        code = outcome.DIFFERENT if check.missing else outcome.FINISHED
        return code, [json.loads(msgspec.json.encode(one)) for one in check.findings()]


@pytest.fixture
def log(cluster: Settings) -> Log:
    """A log of this test alone."""
    made = Log(cluster)
    made.crawl()
    return made


def flip(engine: Engine, topic: str, place: bytes) -> None:
    """Flip a byte in a segment of a broker that runs, behind the last occurrence of some bytes."""
    (segment,) = (engine.data / "kafka" / "log" / f"{topic}-0").glob("*.log")
    at = segment.read_bytes().rindex(place) + len(place) + 2
    with segment.open("rb+") as opened:
        opened.seek(at)
        was = opened.read(1)
        opened.seek(at)
        opened.write(bytes([was[0] ^ 0xFF]))


@pytest.mark.broker
def test_a_log_that_is_whole_passes(log: Log) -> None:
    """Exit code 0, and each partition in the table."""
    check = Check(log.settings)
    told = stored_text.check_lines(check)
    assert not check.missing
    assert told[-1].startswith("nothing is missing")
    assert sum(line.startswith(log.names.pages) for line in told) == 2


@pytest.mark.broker
@pytest.mark.parametrize("said_in", ["urls", "control", "next"])
def test_a_page_of_a_deleted_job_needs_no_result(log: Log, said_in: str) -> None:
    """Nobody makes anything of it. A later job of the name has later epochs, and its pages need one."""
    log.page(8)
    log.page(9, epoch=1)
    log.parsed(PAGES + 2)
    copy = JobCopy("j", u.JobSpec(rev=2, state="deleted"))
    if said_in == "urls":
        log.write(log.names.urls, u.encode(u.UrlsRecord("j", spec=copy.spec)))
    else:
        copy = copy if said_in == "control" else JobCopy("j", u.JobSpec(), 1, after=0)
        log.write(log.names.control, control.encode(copy), key=control.key(copy))
    assert [one["start"] for one in log.said()[1]] == [PAGES + 1]


@pytest.mark.broker
def test_pages_and_items_that_are_missing_are_named(log: Log) -> None:
    """With topic, partition, offset, URL and job; exit code 5."""
    log.done(7, 7)
    log.page(8)
    log.parsed(PAGES + 1)
    code, found = log.said()
    assert code == outcome.DIFFERENT
    assert [(one["topic"], one["partition"], one["start"], one["url"], one["job"]) for one in found] == [
        (log.names.pages, 0, 7, f"{SITE}/7", "j"),
        (log.names.pages, 0, 6, f"{SITE}/8", "j"),
    ]


class Mended:
    """A supervisor that can make nothing again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.picture = FleetReports()
        self.is_unchecked = True
        self.has_lost_founds = False
        self.told: list[str] = []

    def ends(self, _stage: str) -> tuple[int, ...]:
        """Nobody reports."""
        return ()

    def mend(self, check: Check, *, founds: bool) -> None:
        """Tries."""
        self.told.append(f"mends {check.missing}" + ", and founds" * founds)

    def checked(self) -> None:
        """The log is whole."""
        self.told.append("checked")


@pytest.mark.broker
def test_what_cannot_be_made_again_ends_a_run_with_its_own_code(log: Log) -> None:
    """It is tried once more as long as less is missing; then topic, partition, offset and the next command are told."""
    supervisor = Mended(log.settings)
    whole = LossCheck(supervisor, supervisor.told.append)  # type: ignore[arg-type]  # as much of one as is needed
    end = Finished("j", 1.0, pages=(PAGES,))
    log.done(7, 7)
    assert not whole.holds(end, JobCounts())
    assert whole.holds(end, JobCounts())
    assert [line for line in supervisor.told if line.startswith(("mends", "checked"))] == ["mends 1"]
    gone, then = whole.missing
    assert gone.startswith(f"{log.names.pages}[0] 7: gone")
    assert "`crawlog run`" in then
    summary = Summary("j", reason="finished", counts=JobCounts(fetched=7), missing=whole.missing)
    assert summary_text.exit_code(summary) == outcome.DIFFERENT
    assert f"  {gone}" in summary_text.lines(summary)


@pytest.mark.broker
def test_what_a_worker_finds_cut_reaches_the_run(log: Log) -> None:
    """Where it is crawl.urls, founds may be gone, which no check of pages shows: all pages are parsed again, once."""
    supervisor = Mended(log.settings)
    supervisor.picture.take(Progress("w", "fetch", 0, 0.0, offset=3, cut=9))
    supervisor.picture.take(Progress("w", "fetch", 0, 1.0, offset=4))
    whole = LossCheck(supervisor, supervisor.told.append)  # type: ignore[arg-type]  # as much of one as is needed
    end = Finished("j", 1.0, pages=(PAGES,))
    assert not whole.holds(end, JobCounts())
    assert whole.holds(end, JobCounts())
    assert [line for line in supervisor.told if line.startswith(("mends", "checked"))] == [
        "mends 0, and founds",
        "checked",
    ]


@pytest.mark.broker
def test_a_log_that_is_whole_is_checked_once(log: Log) -> None:
    """Then nobody doubts it, and the run ends."""
    supervisor = Mended(log.settings)
    whole = LossCheck(supervisor, supervisor.told.append)  # type: ignore[arg-type]  # as much of one as is needed
    assert whole.holds(Finished("j", 1.0, pages=(PAGES,)), JobCounts())
    assert supervisor.told[-1] == "checked"
    assert whole.was_damaged
    assert not whole.missing


@pytest.mark.broker
@pytest.mark.parametrize("number", [2, PAGES - 1])
def test_a_damaged_batch_is_named_and_the_rest_is_read(log: Log, engine: Engine, number: int) -> None:
    """In the middle, and at the end where no record follows; what it held is missing, and nothing else."""
    flip(engine, log.names.pages, f"{SITE}/{number}".encode())
    code, found = log.said()
    assert code == outcome.DIFFERENT
    assert [(one["start"], one["end"]) for one in found] == [(number, number + 1)] * 2
    assert [str(one["what"]).split()[0] for one in found] == ["cannot", "gone,"]


@pytest.mark.broker
def test_lost_founds_are_not_passed_over_while_others_hold_the_pages(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages have to be parsed again for them. The error names the topic, the group and who holds it."""
    monkeypatch.setattr(power_cut, "EMPTY_S", 0.5)
    settings, names = log.settings, log.names
    name = topics.stage_group(settings, "parse")
    other = Consumer(consumer_config(settings, name) | {"client.id": "parse-elsewhere"})
    other.subscribe([names.pages])
    deadline = time.monotonic() + WAIT_S
    while not other.assignment():
        other.poll(0.1)
        assert time.monotonic() < deadline
    other.commit(offsets=[TopicPartition(names.pages, 0, PAGES, OURS)], asynchronous=False)
    cut = CutPartition(names.urls, 0, 2, 9, "its leader of epoch 3", is_replaced=True)
    with pytest.raises(EngineError, match=rf"{names.urls} has lost founds.*{name}.*parse-elsewhere"):
        power_cut.after_cuts(settings, lambda _: None, [cut])
    other.close()
    power_cut.after_cuts(settings, lambda _: None, [cut])
    assert groups.held(Admin(settings), groups.Group(name, "parse", names.pages))[0].committed == 0


def test_a_group_that_another_command_has_moved_back_is_told_by_its_commits() -> None:
    """One of its partitions is further back than before; one that goes on is not."""
    before = {("pages", 0): 5, ("pages", 1): 7}
    assert power_cut._was_moved(before, before | {("pages", 1): 0})
    assert not power_cut._was_moved(before, before | {("pages", 1): 9})
    assert not power_cut._was_moved(before, before)
