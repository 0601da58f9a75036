"""What is shown while a crawl runs: one line, or a table."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from crawlog.jobs.live import Frame, line, table
from crawlog.schemas.progress import JobCounts
from crawlog.streams.dead_letters import CommonestError
from crawlog.streams.fleet import EndEstimate


def shown(frame: Frame) -> str:
    """The table as text."""
    out = io.StringIO()
    Console(file=out, width=100).print(table(frame))
    return out.getvalue()


def test_records_that_could_not_be_handled_are_shown_with_their_commonest_error() -> None:
    """A spider that raises on every page shows at once."""
    frame = Frame("j", 1.0, JobCounts(), 0.0, {}, [], dead=7, commonest=CommonestError("ValueError: seven", 5))
    for text in (line(frame), shown(frame)):
        assert "7" in text
        assert "ValueError: seven" in text
        assert "dead list" in text


@pytest.mark.parametrize("text", [line, shown])
def test_links_that_rules_dropped_are_shown(text: Callable[[Frame], str]) -> None:
    """Else a crawl whose scope is too small looks as if there were no more."""
    frame = Frame("j", 1.0, JobCounts(dropped={"depth": 3, "scope": 12}), 0.0, {}, [])
    assert "15" in text(frame)
    assert "12 by scope, 3 by depth" in text(frame)


@pytest.mark.parametrize("text", [line, shown])
def test_a_start_that_goes_on_is_shown(text: Callable[[Frame], str]) -> None:
    """Else a crawl that waits for a spider's next request looks as if it could not end."""
    assert "goes on" in text(Frame("j", 1.0, JobCounts(), 0.0, {}, [], is_starting=True))
    assert "goes on" not in text(Frame("j", 1.0, JobCounts(), 0.0, {}, []))


@pytest.mark.parametrize("text", [line, shown])
def test_a_crawl_without_dead_letters_shows_none(text: Callable[[Frame], str]) -> None:
    """The common case takes no room."""
    assert "not handled" not in text(Frame("j", 1.0, JobCounts(), 0.0, {}, []))


@pytest.mark.parametrize("text", [line, shown])
def test_what_hosts_that_may_never_answer_are_waited_for_is_shown(text: Callable[[Frame], str]) -> None:
    """Else a crawl that waits for mute servers, or for a mute DNS, looks as if it did nothing."""
    counts = JobCounts(in_flight=3)
    frame = Frame("j", 1.0, counts, 0.0, {}, [], naming=12, unanswered=2048)
    assert "12 hosts waiting for DNS, 2,048 for a first answer" in text(frame)
    assert "first answer" not in text(Frame("j", 1.0, counts, 0.0, {}, []))


@pytest.mark.parametrize("text", [line, shown])
def test_a_log_that_does_not_answer_is_shown(text: Callable[[Frame], str]) -> None:
    """Else a crawl whose cluster is away looks as if it had hung."""
    frame = Frame("j", 95.0, JobCounts(fetched=7), 3.0, {}, [], is_stalled=True)
    assert "95 s" in text(frame)
    assert "the log does not answer" in text(frame)
    assert "crawlog doctor" in text(frame)


def test_what_waits_is_said_in_the_users_words() -> None:
    """Not by the names of stages and of Kafka's groups."""
    frame = Frame("j", 1.0, JobCounts(), 0.0, {"fetch": 4, "parse": 1, "sink": 2000}, [])
    assert "waiting: 4 records to queue, 1 page to parse, 2,000 pages to write" in line(frame)
    words = shown(frame).split()
    assert "lag" not in words
    assert words[words.index("write") - 1 : words.index("write") + 2] == ["to", "write", "2,000"]


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (EndEstimate(3.2), "about 5 s"),
        (EndEstimate(44), "about 45 s"),
        (EndEstimate(89), "about 90 s"),
        (EndEstimate(100), "about 2 min"),
        (EndEstimate(3599), "about 60 min"),
        (EndEstimate(5400), "about 1.5 h"),
        (EndEstimate(200_000), "about 2.3 days"),
        (EndEstimate(2400, 3), "≥ 40 min: 3 hosts decide"),
        (EndEstimate(2400, 1), "≥ 40 min: 1 host decides"),
    ],
)
def test_the_end_is_estimated_in_words_that_are_no_promise(left: EndEstimate, said: str) -> None:
    """Of what is queued: what pages link to is not known yet."""
    frame = Frame("j", 1.0, JobCounts(queued=5), 1.0, {}, [], left=left)
    assert f"5 queued ({said})" in line(frame)
    assert f"{said}, if no more is found" in shown(frame)


@pytest.mark.parametrize("text", [line, shown])
def test_an_end_that_is_not_known_is_not_told(text: "object") -> None:
    """Nor does its row take room."""
    assert callable(text)
    assert "about" not in text(Frame("j", 1.0, JobCounts(queued=5), 1.0, {}, []))


def test_the_table_fits_80_columns_whatever_it_has_to_say() -> None:
    """All rows at once, with a long host, a long error, and numbers of a large crawl."""
    many = 1_234_567_890
    counts = JobCounts(
        queued=many,
        held=many,
        in_flight=many,
        fetched=many,
        redirected=many,
        failed=many,
        refused=many,
        retried=many,
        needs={"network.allow_private=true": many},
    )
    frame = Frame(
        "job-d0ce0f1438",
        1e6,
        counts,
        12345.6,
        {"fetch": many, "parse": many, "sink": many},
        [(f"https://{'very-' * 20}long.example", many, 1.0)] * 5,
        "1,234,567,890 of them paused, parse paused, sink paused",
        many,
        CommonestError("ValueError: " + "long " * 50, many),
        EndEstimate(1e6, many),
    )
    out = io.StringIO()
    Console(file=out, width=80).print(table(frame))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(label in out.getvalue() for label in ("pages/s", "queued", "held", "end", "not handled", "to write"))
    assert out.getvalue().count("1,234,567,890") >= 9


@pytest.mark.parametrize("text", [line, shown])
def test_no_counts_are_shown_before_all_partitions_are_read(text: Callable[[Frame], str]) -> None:
    """They would be zeros, or a part of what there is."""
    told = text(Frame("j", 10.0, JobCounts(queued=3), 0.0, {}, [], reading="2 of 8 partitions"))
    assert "2 of 8 partitions" in told
    assert "queued" not in told
    assert "pages/s" not in told


@pytest.mark.parametrize("text", [line, shown])
def test_what_urls_need_that_their_owners_may_not_ask_for_is_shown(text: Callable[[Frame], str]) -> None:
    """A run waits for them: until a worker with that setting has their partition."""
    frame = Frame("j", 1.0, JobCounts(queued=5, needs={"network.allow_private=true": 3}), 1.0, {}, [])
    assert "3 wait for a worker with network.allow_private=true" in text(frame)


@pytest.mark.parametrize(
    ("state", "paused", "said"), [("paused", "paused", "jobs resume shop"), ("running", "parse paused", "control list")]
)
@pytest.mark.parametrize("text", [line, shown])
def test_a_paused_job_names_the_command_that_helps(
    text: Callable[[Frame], str], state: str, paused: str, said: str
) -> None:
    """What `jobs pause` did is no command in force: `control list` says that there is none."""
    told = text(Frame("shop", 1.0, JobCounts(queued=5), 1.0, {}, [], paused, state=state))
    assert f"{paused}: " in told
    assert f"crawlog {said}" in told


@pytest.mark.parametrize(("state", "why"), [("running", "crawlog control list"), ("stopped", "the job is stopped")])
def test_held_urls_say_why_nobody_waits_for_them(state: str, why: str) -> None:
    """No command in force holds those of a job at its limit, whose last pages are parsed still."""
    assert f"not waited for: {why}" in shown(Frame("shop", 1.0, JobCounts(held=5), 1.0, {}, [], state=state))
