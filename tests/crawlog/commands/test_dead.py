"""`crawlog dead`: what is open, what goes back, and what a letter's next try is."""

import gzip
import json
import time

import msgspec
import pytest

from crawlog.cli.operate_text import list_json, list_lines, redrive_lines, show_json, show_lines
from crawlog.commands import dead as command
from crawlog.schemas import dead, items, pages
from crawlog.schemas import urls as u
from crawlog.schemas.job_orders import OutputSpec
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.control import known_job, write_job
from crawlog.streams.dead_letters import (
    CommonestError,
    Letter,
    LetterChoice,
    Letters,
    LetterTally,
    letter_mark,
    letters_by_error,
    letters_by_place,
    redrive_refusal,
)
from crawlog.streams.errors import Misconfigured
from crawlog.streams.fleet.readers import OpenLetters
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from tests.support.dying import dying

AT = 1_700_000_000.0
LARGE = Settings().body_room + 1


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 4


def letter(
    offset: int,
    *,
    partition: int = 0,
    stage: str = "parse",
    error: str = "ValueError: no",
    job: str = "j",
    traceback: str = "",
) -> dead.DeadLetter:
    """A letter about a page."""
    return dead.DeadLetter("crawl.pages", partition, offset, stage, error, None, b"x", job, traceback)


def letters(*records: dead.DeadLetter | dead.Mark) -> Letters:
    """What a log of these records comes to."""
    log = Letters()
    for offset, record in enumerate(records):
        value = dead.encode_mark(record) if isinstance(record, dead.Mark) else record.value
        log.take(offset, AT + offset, record.headers(), value)
    return log


def test_letters_are_open_until_a_mark_names_them() -> None:
    """Those dealt with are shown on request, with how."""
    log = letters(letter(1), letter(2), dead.Mark([0], "dropped"))
    assert [one.offset for one in log.chosen(LetterChoice())] == [1]
    assert [one.handled for one in log.chosen(LetterChoice(), handled=True)] == ["dropped", ""]


def test_a_redriven_record_that_fails_again_is_its_second_try() -> None:
    """Counted along the places that it was sent to, again and again."""
    log = letters(
        letter(1),
        dead.Mark([0], "redriven", [(0, 7)]),
        letter(7),
        dead.Mark([2], "redriven", [(0, 9)]),
        letter(9),
        letter(8),
    )
    assert [one.tries for one in log.all.values()] == [1, 2, 3, 1]
    log = letters(letter(1), letter(7), dead.Mark([0], "redriven", [(0, 7)]))  # a worker was faster than the mark
    assert [one.tries for one in log.all.values()] == [1, 2]


def test_a_state_folded_again_opens_no_letter_that_was_dealt_with() -> None:
    """The same record is bad once more. What a spider does to a page read again is news, so is another record there."""
    bad, other = letter(1, stage="frontier"), msgspec.structs.replace(letter(1, stage="frontier"), value=b"y")
    log = letters(bad, letter(2), dead.Mark([0, 1], "dropped"), bad, letter(2), other)
    assert [one.offset for one in log.chosen(LetterChoice())] == [4, 5]


@pytest.mark.parametrize(
    ("choice", "offsets"),
    [
        (LetterChoice(), [0, 1, 2]),
        (LetterChoice(stage="sink"), [1]),
        (LetterChoice(job="k"), [2]),
        (LetterChoice(since=AT + 1), [1, 2]),
        (LetterChoice(reason="valueERROR"), [0, 2]),
        (LetterChoice(offsets=frozenset({1, 2}), job="k"), [2]),
    ],
)
def test_letters_are_chosen(choice: LetterChoice, offsets: list[int]) -> None:
    """By stage, job, part of the error, offset, time; all of them together."""
    log = letters(letter(1), letter(2, stage="sink", error="KeyError: 1"), letter(3, job="k"))
    assert [one.offset for one in log.chosen(choice)] == offsets


META = pages.encode(pages.PageMeta("http://a.example/", "j"))
FOUNDS = u.encode(u.UrlsRecord(job="j", urls=[u.FoundUrl("http://b.example/"), u.FoundUrl("http://c.example/")]))
ITEMS = items.encode(items.ItemsRecord("j", "http://d.example/", (0, 1), [msgspec.Raw(b"{}")]))
DONES = b'{"v":1,"job":"j","results":[{"url":"http://e.example/","status":"nonsense"}]}'


@pytest.mark.parametrize(
    ("stage", "header", "value", "url"),
    [
        ("parse", META, b'{"url": "http://not.example/"}', "http://a.example/"),
        ("parse", META, None, "http://a.example/"),
        ("parse", b"{", b'{"url": "http://not.example/"}', ""),
        ("frontier", None, FOUNDS, "http://b.example/ (and 1 more)"),
        ("frontier", None, DONES, "http://e.example/"),
        ("frontier", None, b'{"url": "http://f.example/"}', "http://f.example/"),
        ("frontier", None, b'{"url": 7}', ""),
        ("sink", None, ITEMS, "http://d.example/"),
        ("sink", None, b"[" * 100_000, ""),
        ("control", None, b'{"v":1}', ""),
    ],
)
def test_a_letter_tells_the_url_that_it_is_about(
    stage: str, header: bytes | None, value: bytes | None, url: str
) -> None:
    """By the page's metadata, or by the record; a body is no record. Empty where there is none."""
    log, said = Letters(), dead.DeadLetter("crawl.x", 0, 1, stage, "no", None, value)
    log.take(0, AT, said.headers() + ([] if header is None else [(pages.HEADER, header)]), value)
    assert log.all[0].url == url


def test_letters_are_grouped_by_what_went_wrong() -> None:
    """The commonest first, then the latest; numbers in an error make no other group."""
    log = letters(
        letter(1, error="too_complex: 71 tags"),
        letter(2, error="KeyError: 'a'"),
        letter(3, error="too_complex: 9 tags"),
        letter(4, stage="sink", error="KeyError: 'a'"),
    )
    groups = [[one.offset for one in group] for group in letters_by_error(log.all.values())]
    assert groups == [[0, 2], [3], [1]]


def test_a_tally_counts_the_records_of_one_job_and_knows_its_commonest_error() -> None:
    """Errors of one kind are one error, shown by the first; marks and other jobs' letters are nothing to it."""
    tally = LetterTally("j")
    for record in (
        letter(1, error="KeyError: 'a'"),
        letter(2, error="TypeError: no title"),
        letter(3, error="TypeError: no date"),
        letter(4, error="AttributeError: x", job="k"),
        dead.Mark([0], "dropped"),
    ):
        tally.take(record.headers())
    assert (tally.count, tally.commonest) == (3, CommonestError("TypeError: no title", 2))


def test_a_record_that_is_buried_twice_counts_once() -> None:
    """A page is parsed again after a kill, and fails again; in another partition it is another page."""
    tally = LetterTally("j")
    for record in (letter(1), letter(1, error="MemoryError: "), letter(1, partition=1)):
        tally.take(record.headers())
    assert (tally.count, tally.commonest) == (2, CommonestError("ValueError: no", 2))
    assert (LetterTally("j").count, LetterTally("j").commonest) == (0, None)


def test_items_that_pipelines_failed_count_each() -> None:
    """All items of `start` are one record; the error is shown once, without the number of its item, with its place."""
    tally = LetterTally("j")
    errors = [dead.of_item("TimeoutError: the pool is empty", number, 45) for number in (*range(1, 46), 45)]
    for error in (*errors, "KeyError: 'a'"):
        tally.take(letter(1, error=error, traceback="/shop/pipelines.py, line 3, in process_item\nTraceback").headers())
    assert (tally.count, tally.items) == (46, 45)
    assert tally.commonest == CommonestError(
        "TimeoutError: the pool is empty", 45, "/shop/pipelines.py, line 3, in process_item"
    )


def test_letters_about_one_record_go_together() -> None:
    """It goes back once, and all of them are closed."""
    groups = letters_by_place(letters(letter(1), letter(2), letter(1, error="again")).all.values())
    assert [[one.offset for one in group] for group in groups] == [[0, 2], [1]]
    assert letter_mark(groups, "redriven", [(0, 5), (0, 6)], AT) == dead.Mark(
        [0, 2, 1], "redriven", [(0, 5), (0, 5), (0, 6)], AT
    )


@pytest.mark.parametrize("place", [("", -1, -1), ("elsewhere", 0, 0), ("crawl.pages", -1, 3), ("crawl.pages", 8, 3)])
def test_a_letter_that_names_no_place_stays(place: tuple[str, int, int]) -> None:
    """Anyone may write to crawl.dead."""
    assert redrive_refusal(Letter(0, AT, "parse", "", place, ""), {"parse": "crawl.pages"}, 8)


@pytest.mark.parametrize("stage", ["control", "", "fetch", "parse", "frontier", "sink"])
@pytest.mark.parametrize("topic", ["control", "urls", "pages", "items", "dead", "progress"])
def test_a_record_goes_back_only_to_the_topic_that_its_stage_reads(stage: str, topic: str) -> None:
    """A letter says what its writer wrote: none has a command or a job written to crawl.control."""
    found = redrive_refusal(Letter(0, AT, stage, "", (f"x.{topic}", 0, 0), ""), Topics("x.").inputs, 8)
    is_taken = (stage, topic) in {("frontier", "urls"), ("parse", "pages"), ("sink", "items")}
    assert is_taken == (not found), found


def test_garbage_closes_nothing() -> None:
    """A mark of another client that is none."""
    log = letters(letter(1))
    log.take(1, AT, [(dead.HANDLED, b"redriven")], b"{")
    assert len(log.chosen(LetterChoice())) == 1


def test_a_record_keeps_its_own_headers() -> None:
    """They stand behind the letter's, even where they have the same names."""
    own = [("topic", b"mine"), ("crawlog", b"{}")]
    assert dead.own_headers(letter(1).headers() + own) == own
    assert dead.own_headers(own) == []


def test_what_a_failed_record_says_in_its_own_headers_is_not_the_letters() -> None:
    """It had the letter counted at another place, or taken for a mark: then nobody saw it."""
    own = [("topic", b"crawl.items"), ("offset", b"99"), ("job", b"other"), (dead.HANDLED, b"dropped")]
    log, tally = Letters(), LetterTally("j")
    said = dead.DeadLetter("crawl.pages", 3, 17, "parse", "ValueError: no", job="j").headers() + own
    log.take(1, AT, said, b"")
    tally.take(said)
    assert [(one.place, one.job) for one in log.chosen(LetterChoice())] == [(("crawl.pages", 3, 17), "j")]
    assert tally.count == 1


@pytest.fixture
def log(cluster: Settings) -> tuple[Settings, Producer, Topics]:
    """Topics with two pages, of which one was buried with its body, the other without."""
    ensure_topics(cluster)
    names = Topics(cluster.kafka.prefix)
    producer = Producer(cluster, "test")
    header = [(pages.HEADER, pages.encode(pages.PageMeta("http://a.example/", "j")))]
    for page in (b"small", b"large"):
        producer.send(names.pages, page, key=b"a.example", partition=3, headers=header)
    bodies: list[tuple[int, bytes | None]] = [(0, b"small"), (1, None)]
    for offset, body in bodies:
        said = dead.DeadLetter(names.pages, 3, offset, "parse", "ValueError: no", job="j", traceback="Traceback …")
        producer.send(names.dead, body, key=b"a.example", partition=0, headers=said.headers() + header)
    bad = dead.DeadLetter(names.urls, 2, 5, "frontier", "does not decode")
    producer.send(names.dead, b"\xff{", partition=0, headers=bad.headers())
    producer.flush(10)
    return cluster, producer, names


@pytest.mark.broker
def test_records_go_back_as_they_were(log: tuple[Settings, Producer, Topics]) -> None:
    """Key, headers and partition, a body that was too large from its own place; once, and not again."""
    settings, producer, names = log
    assert len(command.listed(settings, LetterChoice(), 9, handled=False).shown) == 3
    planned = command.redriven(settings, LetterChoice(stage="parse"), execute=False, report=pytest.fail)
    assert redrive_lines(planned)[-1] == "2 records would go back to the log; --execute does it"
    command.redriven(settings, LetterChoice(stage="parse"), execute=True, report=pytest.fail)
    again = list(read_records(settings, names.pages, 3, 2, log_bounds(settings, names.pages, [3])[3][1]))
    assert [(one.key(), one.value(), one.headers()) for one in again] == [
        (one.key(), one.value(), one.headers()) for one in read_records(settings, names.pages, 3, 0, 2)
    ]
    command.redriven(settings, LetterChoice(stage="parse"), execute=True, report=pytest.fail)
    assert log_bounds(settings, names.pages, [3])[3] == (0, 4)

    failed_again = dead.DeadLetter(names.pages, 3, 2, "parse", "ValueError: no", job="j")
    producer.send(names.dead, b"small", partition=0, headers=failed_again.headers())
    producer.flush(10)
    one = json.loads(list_json(command.listed(settings, LetterChoice(job="j"), 9, handled=False))[0])
    assert (one["record_offset"], one["tries"]) == (2, 2)

    command.dropped(settings, LetterChoice(), execute=True)
    assert command.listed(settings, LetterChoice(), 9, handled=False).shown == []
    counted = [
        record for record in read_records(settings, names.dead, 0, 0, 99) if ("job", b"j") in (record.headers() or ())
    ]
    assert len(counted) == 3  # marks are no letters of the job, so its exit code does not count them


@pytest.mark.broker
def test_open_letters_are_counted_by_job_as_the_topic_grows(log: tuple[Settings, Producer, Topics]) -> None:
    """Only what is new is read; closed ones, and those of an earlier epoch, do not count."""
    settings, producer, names = log
    since: dict[str, float] = {}
    counted = OpenLetters(settings, names.dead)
    before = dict(counted.by_job(since))
    assert sum(before.values()) == 3
    producer.send(names.dead, b"small", partition=0, headers=letter(9, job="k").headers())
    producer.flush(10)
    assert counted.by_job(since) == {**before, "k": 1}
    since["k"] = time.time() + 1e6
    assert counted.by_job(since) == before
    command.dropped(settings, LetterChoice(), execute=True)
    assert counted.by_job(since) == {}
    assert [one.handled for one in counted.all()] == 4 * ["dropped"]


@pytest.mark.broker
@pytest.mark.parametrize("stage", ["control", "parse"])
def test_a_redrive_of_all_letters_writes_nothing_to_crawl_control(
    log: tuple[Settings, Producer, Topics], stage: str
) -> None:
    """A stranger's letter holds a command; the letter stays, and the answer says why."""
    settings, producer, names = log
    forged = dead.DeadLetter(names.control, 0, 0, stage, "ValueError: no")
    producer.send(names.dead, b"{}", key=b"command/stop", partition=0, headers=forged.headers())
    producer.flush(10)
    before = log_bounds(settings, names.control, [0])
    told = command.redriven(settings, LetterChoice(), execute=True, report=pytest.fail)
    assert log_bounds(settings, names.control, [0]) == before
    assert redrive_lines(told)[0].startswith(
        f"3 stays: {'records of' if stage == 'control' else 'the stage parse reads'}"
    )
    assert [one.offset for one in command.Dead(settings).chosen(LetterChoice())] == [3]


@pytest.mark.broker
def test_a_redrive_that_was_killed_before_its_mark_is_done_again(
    log: tuple[Settings, Producer, Topics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records lie there twice, which changes nothing; the letters are closed in the end."""
    settings, _, names = log

    with dying(monkeypatch, "redrive.acknowledged", 1):
        command.redriven(settings, LetterChoice(stage="parse"), execute=True, report=pytest.fail)
    assert len(command.listed(settings, LetterChoice(stage="parse"), 9, handled=False).shown) == 2
    command.redriven(settings, LetterChoice(stage="parse"), execute=True, report=pytest.fail)
    assert log_bounds(settings, names.pages, [3])[3] == (0, 6)
    assert command.listed(settings, LetterChoice(stage="parse"), 9, handled=False).shown == []


@pytest.mark.broker
def test_items_that_failed_stay_where_the_log_has_newer_ones_of_their_page(
    log: tuple[Settings, Producer, Topics],
) -> None:
    """They would come last, replace those of the mended spider, and fail again. A copy of a killed redrive is no
    newer one.
    """
    settings, producer, names = log
    for url, value in (("a", b"old"), ("b", b"old"), ("c", b"old"), ("a", b"new"), ("b", b"old")):
        producer.send(names.items, value, key=b"j " + url.encode(), partition=3)
    for offset, url in enumerate("abc"):
        said = dead.DeadLetter(names.items, 3, offset, "sink", "KeyError: 'price'", job="j")
        producer.send(names.dead, b"old", key=b"j " + url.encode(), partition=0, headers=said.headers())
    producer.flush(10)
    told = command.redriven(settings, LetterChoice(stage="sink"), execute=True, report=pytest.fail)
    assert redrive_lines(told)[0].startswith("3 stays: the log has newer items of its page")
    sent = read_records(settings, names.items, 3, 5, log_bounds(settings, names.items, [3])[3][1])
    assert [one.key() for one in sent] == [b"j b", b"j c"]


@pytest.mark.broker
def test_a_job_with_outputs_ends_behind_what_was_redriven(
    log: tuple[Settings, Producer, Topics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its FILE is complete with the rows before its end. The letters are marked last: a command that was killed is
    given again.
    """
    settings, producer, names = log
    finished = u.JobSpec(1, outputs=(OutputSpec("rows.jsonl"),), state="finished")
    write_job(settings, producer, names, "j", finished)
    with dying(monkeypatch, "job.sending", 1):
        command.redriven(settings, LetterChoice(stage="parse"), execute=True, report=pytest.fail)
    assert len(command.listed(settings, LetterChoice(stage="parse"), 9, handled=False).shown) == 2
    command.redriven(settings, LetterChoice(stage="parse"), execute=True, report=pytest.fail)
    copy = known_job(settings, names, "j")
    assert copy is not None
    assert (copy.spec.state, copy.spec.reason) == ("running", command.REDRIVEN)


@pytest.mark.broker
def test_the_list_shows_urls_under_their_errors(log: tuple[Settings, Producer, Topics]) -> None:
    """Every error with its count, also where the limit leaves its letters out; the newest letters are shown."""
    settings, _, names = log
    lines = list_lines(command.listed(settings, LetterChoice(), 2, handled=False))
    assert lines[0] == "2 dead letters of parse: ValueError: no"
    assert lines[1].split()[0] == "1"
    assert lines[1].endswith("job j  http://a.example/")
    assert lines[2] == "1 dead letter of frontier: does not decode"
    assert lines[3].endswith(f"{names.urls}[2]:5")
    assert lines[4:] == ["3 dead letters, the newest 2 shown; 0 dealt with"]
    one = json.loads(list_json(command.listed(settings, LetterChoice(), 9, handled=False))[0])
    assert one["url"] == "http://a.example/"


@pytest.mark.broker
@pytest.mark.parametrize(
    ("value", "shown"),
    [(gzip.compress(b"<p>x"), "<p>x"), (b"no gzip", "no gzip"), (gzip.compress(b"x" * LARGE), "x" * LARGE)],
    ids=["whole", "broken", "large"],
)
def test_a_page_in_a_coding_is_shown_plain_and_goes_back_as_it_came(
    log: tuple[Settings, Producer, Topics], value: bytes, shown: str
) -> None:
    """One that cannot be unpacked is shown as it is. Its own limit counts, not that of this command's settings."""
    settings, producer, names = log
    headers = pages.headers(pages.PageMeta("http://a.example/", "j", limit=LARGE), "gzip")
    letter = dead.DeadLetter(names.pages, 3, 1, "parse", "MemoryError: ", job="j")
    producer.send(names.dead, value, key=b"a.example", partition=0, headers=letter.headers() + headers)
    producer.flush(10)
    assert json.loads(show_json(command.opened(settings, command.Dead(settings).letter(3))))["value"] == shown
    assert command.opened(settings, command.Dead(settings).letter(3), 100).value == (
        value if len(shown) > 100 else shown.encode()
    )
    command.redriven(settings, LetterChoice(offsets=frozenset({3})), execute=True, report=pytest.fail)
    [again] = read_records(settings, names.pages, 3, 2, 3)
    assert (again.value(), again.headers()) == (value, headers)


@pytest.mark.broker
def test_a_letter_is_shown_with_all_it_has(log: tuple[Settings, Producer, Topics]) -> None:
    """For people and for programs; bytes that are no text too."""
    settings, _, _ = log
    lines = show_lines(command.opened(settings, command.Dead(settings).letter(0)))
    assert "Traceback …" in lines
    assert "small" in lines[-1]
    assert json.loads(show_json(command.opened(settings, command.Dead(settings).letter(2))))["value"] == "\ufffd{"
    with pytest.raises(Misconfigured, match="no dead letter 9"):
        command.opened(settings, command.Dead(settings).letter(9))
    with pytest.raises(Misconfigured, match="no dead letter at 9"):
        command.redriven(settings, LetterChoice(offsets=frozenset({9})), execute=False, report=pytest.fail)


def test_it_must_be_said_which_letters() -> None:
    """By offset or all, not both."""
    for offsets, every in (((), False), ((1,), True)):
        with pytest.raises(Misconfigured, match="--all"):
            command.check_choice(offsets, every=every)


def test_a_mark_is_no_other_record() -> None:
    """It says what it is by its fields, too."""
    assert dead.decode_mark(dead.encode_mark(dead.Mark([1], "dropped"))) == dead.Mark([1], "dropped")
    with pytest.raises(ValueError, match="handled"):
        dead.decode_mark(u.encode(u.UrlsRecord(job="j", urls=[])))
