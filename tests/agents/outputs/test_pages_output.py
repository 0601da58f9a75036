"""The archives of a sink worker: when one begins, ends, fails and is complete. Its files are tested in streams/warc."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from crawlog.agents.outputs import pages_output
from crawlog.agents.outputs.pages_output import PagesOutputs
from crawlog.agents.outputs.wanted import WantedOutput
from crawlog.schemas.control import Finished, OutputNote
from crawlog.schemas.job_orders import OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import Misconfigured, RetryLater
from crawlog.streams.settings import Settings

END = Finished("news", 1.0, reason="finished", rev=2)


class Archiver:
    """In place of `PageArchiver`: it raises what it is given, then counts its fills."""

    made: ClassVar[list["Archiver"]] = []
    errors: ClassVar[list[Exception]] = []

    def __init__(self, _settings: object, sink: Any, *_: object) -> None:
        self.sink = sink
        self.is_closed = self.is_finished = False
        self.pages, self.note, self.waiting = 0, "", 3
        self.made.append(self)
        if self.errors:
            raise self.errors.pop(0)

    def fill(self, _goes_on: Callable[[], bool]) -> None:
        """One page more."""
        self.pages += 1

    def finish(self) -> None:
        self.is_finished = True

    def close(self) -> None:
        self.is_closed = True


class Notes:
    """What was noted about outputs."""

    def __init__(self) -> None:
        self.noted: list[dict[str, Any]] = []

    async def note(self, _wanted: WantedOutput, **became: Any) -> None:
        """Any note."""
        if became not in self.noted:
            self.noted.append(became)

    async def failed(self, _wanted: WantedOutput, error: Exception, text: str = "") -> None:
        """As `OutputNotes`."""
        if isinstance(error, Misconfigured | OSError):
            await self.note(_wanted, error=text or str(error))


@pytest.fixture(autouse=True)
def archiver(monkeypatch: pytest.MonkeyPatch) -> type[Archiver]:
    """Every archive is filled by it, without a pause."""
    Archiver.made, Archiver.errors = [], []
    monkeypatch.setattr(pages_output, "PageArchiver", Archiver)
    for name in ("LOOK_S", "AGAIN_S"):
        monkeypatch.setattr(pages_output, name, 0.01)
    return Archiver


def settings(folder: Path) -> Settings:
    """With a declared archive."""
    made = Settings()
    sink = made.sink.model_copy(update={"outputs": {"archive": f"warc:{folder}/{{job}}"}})
    run = made.run.model_copy(update={"data": folder / "data"})
    return made.model_copy(update={"sink": sink, "run": run})


def wanted(end: Finished | None = None, note: OutputNote | None = None, **output: Any) -> WantedOutput:
    """The archive of a job; with other values another output."""
    one = msgspec.structs.replace(OutputSpec("archive", declared=True), **output)
    spec = JobSpec(rev=2, state="finished" if end else "running", full_headers=True)
    return WantedOutput("news", 0, one, 0, 2, 0, (), spec, end, note)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something."""
    while not is_so():  # noqa: ASYNC110  # what is waited for sets no event
        await asyncio.sleep(0.005)


def outputs(folder: Path) -> tuple[PagesOutputs, Notes]:
    """None yet."""
    notes: Any = Notes()
    letters: Any = SimpleNamespace()
    return PagesOutputs(settings(folder), notes, letters), notes


async def test_an_archive_is_filled_until_its_job_has_ended_and_then_complete(
    tmp_path: Path, archiver: type[Archiver]
) -> None:
    """Other outputs are not its business. It says how many records wait, and what became of it."""
    pages, notes = outputs(tmp_path)
    rest = wanted(name="rows.jsonl", declared=False)
    assert await pages.plan("news", [wanted(), rest]) == [rest]
    await until(lambda: bool(archiver.made) and archiver.made[0].pages > 1)
    [one] = pages.of(0, 8)
    assert (one.waiting, archiver.made[0].is_finished, notes.noted) == ({"archive": 3}, False, [])
    await pages.plan("news", [wanted(END)])
    await until(lambda: bool(notes.noted))
    [note] = notes.noted
    assert (note["place"], note["is_partial"], archiver.made[0].is_finished) == (f"warc:{tmp_path}/news", False, True)
    note_of = OutputNote("news", "archive", 1.0, rev=2, rows=note["rows"])
    assert await pages.plan("news", [wanted(END, note_of)]) == []
    assert (len(archiver.made), archiver.made[0].is_closed, pages.of(0, 8)) == (1, True, [])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "archive: No space left on device"),
        (Misconfigured("no headers\nmore"), "no headers\nmore"),
        (TypeError("a bug"), "TypeError('a bug')"),
    ],
)
async def test_an_archive_that_fails_is_noted_and_tried_again(
    tmp_path: Path, archiver: type[Archiver], error: Exception, told: str
) -> None:
    """Once it works, the note goes."""
    archiver.errors = [error]
    pages, notes = outputs(tmp_path)
    await pages.plan("news", [wanted()])
    await until(lambda: bool(notes.noted))
    assert notes.noted == [{"error": told}]
    failed = OutputNote("news", "archive", 1.0, rev=2, error=told)
    await pages.plan("news", [wanted(note=failed)])
    await until(lambda: len(notes.noted) > 1)
    assert (notes.noted[1], pages.trouble) == ({"rev": 0}, "")
    await pages.end()


async def test_an_archive_that_another_process_holds_is_waited_for(tmp_path: Path, archiver: type[Archiver]) -> None:
    """That is no failure: the former worker lets go of it."""
    archiver.errors = [RetryLater("held", 1.0), RetryLater("held", 1.0)]
    pages, notes = outputs(tmp_path)
    await pages.plan("news", [wanted()])
    await until(lambda: len(archiver.made) == 3)
    await pages.end()
    assert notes.noted == []


async def test_an_archive_ends_with_its_partition_and_begins_anew_where_it_is_to_be_emptied(
    tmp_path: Path, archiver: type[Archiver]
) -> None:
    """It is closed before another worker has it."""
    pages, _ = outputs(tmp_path)
    await pages.plan("news", [wanted()])
    await until(lambda: bool(archiver.made))
    await pages.plan("news", [wanted(fill=1)])
    await until(lambda: len(archiver.made) == 2)
    assert (archiver.made[0].is_closed, archiver.made[1].sink.fill) == (True, 1)
    await pages.plan("news", [])
    assert archiver.made[1].is_closed
