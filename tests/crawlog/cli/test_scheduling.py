"""`crawlog schedule`: what stands behind `--`, and what is printed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crawlog.cli import scheduling
from crawlog.cli.main import cli
from crawlog.jobs import schedules
from crawlog.jobs.request import JobRequest
from crawlog.jobs.schedules import RunView, ScheduleRequest, ScheduleView
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.settings import Settings

VIEW = ScheduleView(
    "news", "0 6 * * *", "Europe/Berlin", 0, "none", "skip", False, 1_795_932_000, 1_795_845_600,
    [RunView("news-20261128T0600Z", "finished")], 0, 3, "", JobRequest(), "me",
)  # fmt: skip


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, ScheduleRequest]]:
    """The requests that reach the log."""
    found: list[tuple[Settings, ScheduleRequest]] = []

    def add(settings: Settings, wanted: ScheduleRequest, **_: Any) -> ScheduleView:
        found.append((settings, wanted))
        return VIEW

    @contextmanager
    def reached(settings: Settings) -> Iterator[Settings]:
        yield settings

    monkeypatch.setattr(schedules, "add_schedule", add)
    monkeypatch.setattr(scheduling, "reachable_log", reached)
    return found


def add(*words: object) -> None:
    """`crawlog schedule add …`."""
    cli.main(args=["schedule", "add", *map(str, words)], prog_name="crawlog", standalone_mode=False)


def test_the_submit_behind_the_dashes_is_what_each_run_does(
    added: list[tuple[Settings, ScheduleRequest]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its URLs, files, sitemaps and settings; the log may be named before or behind the dashes."""
    (tmp_path / "seeds.txt").write_text("# a comment\nhttp://b.test/\n\n")
    submit = ("submit", "http://a.test/", "sitemap:http://c.test/map.xml", "--seeds", tmp_path / "seeds.txt")
    more = ("--depth", 2, "-o", "x.csv", "-s", "scope=host", "--data", tmp_path / "data")
    add("news", "--cron", "0 6 * * *", "--tz", "Europe/Berlin", "--overlap", "queue", "--", *submit, *more)
    ((settings, wanted),) = added
    assert settings.run.data == tmp_path / "data"
    assert (wanted.name, wanted.cron, wanted.tz, wanted.overlap) == ("news", "0 6 * * *", "Europe/Berlin", "queue")
    assert wanted.sitemaps == ("http://c.test/map.xml",)
    expected = JobRequest(
        urls=("http://a.test/", "http://b.test/"), depth=2, outputs=("x.csv",), settings={"scope.kind": "host"}
    )
    assert wanted.submit == expected
    assert "schedule news runs next at 2026-11-29 06:00:00 UTC (07:00 in Europe/Berlin)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run", "http://a.test/"], "what each run does, `submit …`, and not 'run'"),
        (["submit", "http://a.test/", "--wait"], "--wait behind --"),
        (["submit", "http://a.test/", "--json"], "--json behind --"),
        (["submit", "http://a.test/", "-o", "/tmp/x.csv"], "outputs of a fleet are plain names"),
        (["submit", "http://a.test/", "--seeds", "/no/such/file"], "No such file or directory"),
    ],
)
def test_what_no_run_can_do_is_refused(
    added: list[tuple[Settings, ScheduleRequest]], words: list[str], why: str
) -> None:
    """Before the log is looked for."""
    with pytest.raises(Misconfigured, match=why):
        add("news", "--every", "6h", "--", *words)
    assert added == []


def test_a_list_shows_times_runs_and_errors() -> None:
    """One line a schedule, and one for each error; text from the log is escaped."""
    head, line = scheduling.schedule_lines([VIEW])
    assert head.split()[:3] == ["schedule", "times", "next"]
    assert "0 6 * * * Europe/Berlin" in line
    assert "-20261128T0600Z finished" in line
    assert scheduling.schedule_lines([]) == [
        "there is no schedule; `crawlog schedule add NAME --every 6h -- submit URL` adds one"
    ]
