"""The walk of a URL's task: the files of the project that it enters, in order, and how often it returns to one.

    python -m bench.walk               prints the walks, and writes their section of RESULTS.md
    python -m bench.walk --short       prints them alone

The walk is recorded as `sys.setprofile` sees one real pass of a page through the stages of `tests/support`: from its
dispatch to its done (fetch), from its record to the last of its outputs (parse). A call that comes from another file
enters a file; a coroutine that goes on, or a call that returns, enters none. The client is the tests' own.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bench.results import REPO, options_of, run_as, section, table
from crawlog.agents.client.transport import HttpRequest
from crawlog.agents.fetch.task import Tasks
from crawlog.schemas.urls import decode
from crawlog.streams.http.answer import Answer
from tests.support.fetching import Web, running
from tests.support.parsing import Stage, links

ROOMS = ("agents", "crawlog", "schemas", "streams")

_walk: ContextVar["Walk | None"] = ContextVar("walk", default=None)


class Walk:
    """The files entered, in order."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.is_over = False
        self._frames: set[FrameType] = set()

    def called(self, frame: FrameType) -> None:
        """A call, or a coroutine that goes on."""
        name = _file(frame)
        if self.is_over or not name or frame in self._frames:
            return
        self._frames.add(frame)
        caller = frame.f_back
        while caller is not None and not _file(caller):
            caller = caller.f_back
        if caller is None or _file(caller) != name:
            self.files.append(name)

    @property
    def counts(self) -> Counter[str]:
        """Entries of each file."""
        return Counter(self.files)

    @property
    def returns(self) -> int:
        """Entries of a file that was entered before."""
        return len(self.files) - len(self.counts)


def _file(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(REPO):
        return ""
    name = str(path.relative_to(REPO))
    return name if name.partition("/")[0] in ROOMS else ""


@contextmanager
def _profiled() -> Iterator[None]:
    def event(frame: FrameType, kind: str, _argument: object) -> None:
        walk = _walk.get()
        if walk is not None and kind == "call":
            walk.called(frame)

    sys.setprofile(event)
    try:
        yield
    finally:
        sys.setprofile(None)


class Members(Web):
    """A web that takes a login by a form."""

    async def get(self, request: HttpRequest) -> Answer:
        """A login succeeds."""
        if request.form is None:
            return await super().get(request)
        answer = Answer(302)
        answer.location = "/home"
        return answer


async def fetched(folder: Path, patch: pytest.MonkeyPatch, **settings: Any) -> Walk:
    """One URL, from its dispatch to its done; the passes of a login are the first two."""
    walk, run = Walk(), Tasks.run

    async def walked(tasks: Tasks, task: Any) -> None:
        _walk.set(walk if task.row.url.endswith("/x") else None)
        await run(tasks, task)

    patch.setattr(Tasks, "run", walked)
    async with running(folder, patch, Members(), **settings) as world:
        fold = world.log.fold

        def folded(offset: int, record: Any) -> None:
            was_over, walk.is_over = walk.is_over, True  # to look at the record is no step of the walk
            dones = decode(record.value).results or ()
            walk.is_over = was_over or any(done.url.endswith("/x") for done in dones)
            fold(offset, record)

        world.find("http://a.com/warm")  # with what happens once in a worker's life
        world.find("http://b.com/x")
        world.log.fold = folded
        with _profiled():
            await world.all_done("http://b.com/x", "http://a.com/warm")
    patch.undo()
    return walk


def parsed() -> Walk:
    """One page, from its record to the last of its outputs."""
    walk, stage = Walk(), Stage()
    stage.take(links("warm"), url="http://a.test/warm")
    stage.stage.flush()
    stage.log.acknowledge()
    message: list[Any] = []
    take = stage.stage.take
    stage.stage.take = lambda *one, **_: message.extend(one)  # type: ignore[method-assign]  # made by the test's stage
    stage.take(b"<title>x</title>" + links("/1", "/2", "http://other.test/"))
    _walk.set(walk)
    with _profiled():
        take(*message)
        stage.stage.flush()
        stage.log.acknowledge()
    _walk.set(None)
    return walk


def main() -> int:
    """Prints the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the same; nothing is written")
    args = options_of(parser)
    login = {"fetch__forms": ("http://b.com/login#user=ann&password=x",)}
    robots = {"robots__obey": True}

    def fetch(**settings: Any) -> Walk:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(fetched(Path(folder), pytest.MonkeyPatch(), **settings))

    kinds: dict[str, Callable[[], Walk]] = {
        "fetch": lambda: fetch(**robots),
        "fetch, with the login before it": lambda: fetch(**robots, **login),
        "parse": parsed,
    }
    rows = []
    for kind, walked in kinds.items():
        walk = walked()
        often = walk.counts.most_common(3)
        print(f"── {kind}: {len(walk.counts)} files, {walk.returns} returns\n{_drawn(walk.files)}\n")
        rows.append([kind, *map(str, (len(walk.counts), walk.returns)), ", ".join(f"{n} {c}" for n, c in often)])
    body = table(["stage", "files", "returns", "entered most"], rows)
    print(body)
    if args.write:
        section("walk", "The walk of a URL: files entered, returns to one", body, {"command": run_as("walk")})
    return 0


def _drawn(files: list[str]) -> str:
    return " → ".join(files)


if __name__ == "__main__":
    raise SystemExit(main())
