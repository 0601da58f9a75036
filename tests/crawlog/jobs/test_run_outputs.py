"""The files of a run, as its sink worker notes them."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.jobs import run_outputs
from crawlog.jobs.run_outputs import RunOutputs
from crawlog.schemas.control import Finished, OutputNote
from crawlog.schemas.job_orders import NO_LAYOUT, FeedOutput
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import Misconfigured
from crawlog.streams.jobs import FleetReports
from crawlog.streams.settings import Settings
from crawlog.streams.sink import PrivateNotes, SinkState
from crawlog.streams.sink_groups import SinkSpec

END = Finished("shop", 1.0, reason="finished", rev=4)


class Supervised:
    """As much of a supervisor as is asked."""

    def __init__(self, data: Path) -> None:
        self.settings = Settings().model_copy(update={"run": Settings().run.model_copy(update={"data": data})})
        self.picture = FleetReports()
        self.moved: list[dict[int, int]] = []
        self.parse_again = self.moved.append


def outputs_of(
    data: Path, *given: str, pipelines: bool = False, by: Supervised | None = None, overwrite: bool = True
) -> RunOutputs:
    """The outputs of a run in this folder."""
    supervisor: Any = by or Supervised(data)
    feeds = {output: FeedOutput(output, NO_LAYOUT, overwrite=overwrite) for output in given}
    return RunOutputs(supervisor, "shop", feeds, 0, (), pipelines=pipelines)


@pytest.mark.parametrize(
    ("note", "state"),
    [
        ({}, "complete"),
        ({"rev": 3}, "writing"),  # of an earlier end
        ({"epoch": 1}, "writing"),
        ({"error": "the disk is full"}, "writing"),  # rows wait, and are tried again
        ({"error": "the disk is full", "place": "rows.jsonl"}, "failed"),
        ({"is_partial": True}, "partial"),
    ],
)
def test_an_output_is_as_the_newest_note_says(tmp_path: Path, note: dict[str, Any], state: str) -> None:
    """Only a note behind the job's present end counts."""
    outputs, name = outputs_of(tmp_path, str(tmp_path / "rows.jsonl")), str(tmp_path / "rows.jsonl")
    assert [view.state for view in outputs.views(END)] == ["writing"]
    PrivateNotes(tmp_path).note(OutputNote("shop", name, 1.0, **{"rev": 4, "rows": 7} | note))
    [view] = outputs.views(END)
    assert (view.state, view.name) == (state, name)
    assert view.rows == (0 if state == "writing" else 7)


def test_a_run_gives_up_on_rows_that_cannot_be_written_for_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker tries again for ever. Rows that are written again in between count as progress."""
    name = str(tmp_path / "rows.jsonl")
    outputs, notes, error = outputs_of(tmp_path, name), PrivateNotes(tmp_path), f"{name}.partial: No space left"
    for failing, at_s, state in (
        (error, 0.0, "writing"),
        ("", 9.0, "complete"),
        (error, 9.0, "writing"),
        (error, 9.0 + run_outputs.GIVE_UP_S, "failed"),
    ):
        monkeypatch.setattr(run_outputs, "time", SimpleNamespace(monotonic=partial(float, at_s)))
        notes.note(OutputNote("shop", name, 1.0, rev=4, error=failing))
        assert [view.state for view in outputs.views(END)] == [state]
    [view] = outputs.views(END)
    assert view.error == error


def test_pipelines_without_a_file_are_an_output_too(tmp_path: Path) -> None:
    """Their stats and their close belong to the job."""
    outputs = outputs_of(tmp_path, pipelines=True)
    PrivateNotes(tmp_path).note(OutputNote("shop", "none:", 1.0, rev=4, stats={"kept": 3.0}))
    assert [(view.name, view.state, view.stats) for view in outputs.views(END)] == [("none", "complete", {"kept": 3.0})]


def test_rows_that_lack_are_given_up_once_no_fewer_lack(tmp_path: Path) -> None:
    """Each look of the worker counts once; between two looks their pages are fetched or parsed again."""
    by, notes, name = Supervised(tmp_path), PrivateNotes(tmp_path), str(tmp_path / "rows.jsonl")
    outputs, urls = outputs_of(tmp_path, name, by=by), tuple(f"http://a.test/{number}" for number in range(7))
    assert not outputs.lacks_more()
    for lacking, is_given_up in ((urls, False), (urls[:6], False), (urls[:6], True)):
        notes.lack(name, lacking, {3: 7})
        assert outputs.lacks_more()
        notes.lack(name, lacking, {3: 7})  # while they are made again
        outputs.made_again()
        assert not outputs.lacks_more()
        notes.lack(name, lacking, {3: 7})  # it may have begun before they were
        assert not outputs.lacks_more()
        assert bool(outputs.missing) == is_given_up
    assert by.moved == [{3: 7}, {3: 7}]
    [line] = outputs.missing
    assert line.startswith("crawl.items lost the rows of 6 pages, which could not be fetched or parsed again: ")
    assert line.endswith(f"{', '.join(urls[:5])}; --fresh crawls the job again from its seeds")


def test_a_feed_replaces_no_file_that_its_job_has_not_made(tmp_path: Path) -> None:
    """Scrapy would append to it. With `overwrite`, or once the job has begun the file, it is the job's."""
    path = tmp_path / "rows.jsonl"
    outputs_of(tmp_path, str(path), overwrite=False)
    path.write_text("{}\n")
    with pytest.raises(Misconfigured, match=r'FEEDS: .*rows\.jsonl is there.*appends to no file.*"overwrite": True'):
        outputs_of(tmp_path, str(path), overwrite=False)
    outputs_of(tmp_path, str(path))
    SinkState(tmp_path, SinkSpec("shop", str(path)), LogIdentity("cluster", "topic")).close()
    outputs_of(tmp_path, str(path), overwrite=False)
    assert path.read_text() == "{}\n"
