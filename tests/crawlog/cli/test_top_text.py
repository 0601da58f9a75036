"""What `crawlog jobs top` shows of a fleet, and what its keys do."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from crawlog.cli.top_text import MOVES, SORTS, TopView, frame, pressed, room
from crawlog.schemas.progress import JobCounts
from crawlog.service.watch import Alert
from crawlog.streams.fleet import FleetStatus, HostView, JobPace, JobView, StageView, WorkerView

STAGES = (StageView("fetch", 2, 5, 3.25), StageView("parse", 0, 7), StageView("sink", 1, 0, is_paused=True))


USUAL = TopView()


def fleet(jobs: int = 3, workers: int = 3, hosts: int = 3) -> FleetStatus:
    """A fleet of this size, whose jobs differ in each number; the first ones have ended."""
    return FleetStatus(
        tuple(
            JobView(
                f"job{number}",
                "running" if number else "finished",
                counts=JobCounts(queued=number, fetched=10 * number, failed=number),
                rows=number,
                pace=JobPace(60.0 * number),
            )
            for number in range(jobs)
        ),
        tuple(WorkerView(f"fetch-{number}", "fetch", "m1", 7, cpu=0.5, rss=10**8) for number in range(workers)),
        STAGES,
        tuple(HostView(f"http://h{number}.test", 5, 70.0 * number) for number in range(hosts)),
    )


def shown(
    status: FleetStatus,
    view: TopView = USUAL,
    height: int | None = None,
    width: int = 80,
    alerts: Sequence[Alert] = (),
) -> list[str]:
    """The frame as lines of text."""
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(frame(status, alerts, view, 0.0, height))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("height", [24, 60])
@pytest.mark.parametrize("size", [0, 3, 1_000])
def test_a_frame_fits_the_terminal(width: int, height: int, size: int) -> None:
    """Whatever the fleet has; the keys are always there."""
    lines = shown(fleet(size, size, size), height=height, width=width)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("q quit")


def test_at_80_columns_the_numbers_are_whole() -> None:
    """A long name is cut before they are, as are a long trouble and a long host."""
    counts = JobCounts(queued=12_345_678, fetched=12_345_678, failed=123_456)
    job = JobView("job-with-a-long-name" * 9, "cancelled", counts=counts, rows=12_345_678, pace=JobPace(9_999.0))
    told = "\n".join(shown(FleetStatus((job,), (), STAGES)))
    for number in ("12,345,678", "123,456", "9,999", "cancelled"):
        assert number in told


def test_a_text_for_a_pipe_has_all_rows_and_no_keys() -> None:
    """As `top -b -n1`."""
    text = "\n".join(shown(fleet(300, 40, 9)))
    assert "q quit" not in text
    assert "job299 " in text
    assert "fetch-39 " in text


def test_what_needs_a_look_stands_first_with_the_next_command() -> None:
    """The worst ones; the last line counts the others, and the frame is no longer for them."""
    alerts = [
        Alert(f"i{n}", "r", "warning", "job", f"j{n}", "its site refuses it", "crawlog jobs show j") for n in range(9)
    ]
    lines = shown(fleet(50, 50, 50), height=24, width=120, alerts=alerts)
    assert len(lines) <= 24
    assert lines[1] == "job j0: its site refuses it: crawlog jobs show j"
    assert lines[3].endswith("(and 6 more)")


def test_a_paused_stage_and_one_without_workers_are_shown() -> None:
    """With the command that lets it go on."""
    lines = {line.split()[0]: line for line in shown(fleet()) if line.strip()}
    assert "crawlog control resume --stage sink" in lines["sink"]
    assert lines["parse"].split()[1:3] == ["0", "7"]


def test_control_characters_of_names_are_escaped() -> None:
    """A host's or a job's name comes from a record."""
    hosts = (HostView("http://\x1b[31m.test", 1, 1.0),)
    text = "\n".join(shown(FleetStatus((JobView("a\x1b]0;x", "running"),), (), STAGES, hosts)))
    assert "\x1b" not in text
    assert "[31m" in text  # and no markup of rich


@pytest.mark.parametrize(
    ("key", "first"), [("s", "job3"), ("n", "job0"), ("p", "job3"), ("r", "job3"), ("f", "job3"), ("d", "job0")]
)
def test_a_key_sorts_jobs_and_once_more_turns_the_order(key: str, first: str) -> None:
    """Running jobs stand first at the beginning."""
    status, view = fleet(4), pressed(TopView("x"), key, 4, 9)
    assert view is not None
    assert next(line.split()[0] for line in shown(status, view) if line.startswith("job") and line[3] != " ") == first
    turned = pressed(view, key, 4, 9)
    assert turned == TopView(key, is_reversed=True)
    assert [line.split()[0] for line in shown(status, turned) if line.startswith("job")][-1] == first


@pytest.mark.parametrize(
    ("key", "first"), [("j", 6), ("k", 4), ("\x1b[B", 6), ("\x1b[A", 4), ("\x1b[6~", 15), ("\x1b[5~", 0), ("x", 5)]
)
def test_keys_move_the_list_of_jobs(key: str, first: int) -> None:
    """By a line or a page; another key does nothing."""
    assert pressed(TopView(first=5), key, 30, 10) == TopView(first=first)


def test_the_list_of_jobs_stays_between_its_ends() -> None:
    """Its last page is full; jobs that end leave no empty page."""
    assert pressed(TopView(first=20), "\x1b[6~", 30, 10) == TopView(first=20)
    assert pressed(TopView(), "k", 3, 10) == TopView()
    assert any(line.startswith("job2 ") for line in shown(fleet(3), TopView(first=50), height=24))


def test_q_quits() -> None:
    """So does Q."""
    assert pressed(TopView(), "q", 1, 1) is None
    assert pressed(TopView(), "Q", 1, 1) is None
    assert not {"q", "Q"} & {*SORTS, *MOVES}


def test_a_low_terminal_shows_jobs_before_hosts() -> None:
    """At least one line of each of the others."""
    jobs, workers, hosts = room(fleet(50, 50, 50), 0, 12)
    assert (jobs >= 1, workers >= 1, hosts) == (True, True, 0)
