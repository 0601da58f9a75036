"""Who is suspected of a worker's death: processes that die while they hold keys, one after the other."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from crawlog.streams.worker import suspects
from crawlog.streams.worker.suspects import Deaths, Suspects, judge
from tests.support.processes import forked

SEGFAULT = "ctypes.string_at(0)"
KILLED = "os.kill(os.getpid(), 9)"
BLOCKED = "held.blame('loop_blocked'); os._exit(75)"


class Die(Protocol):
    """A worker that holds these keys dies."""

    def __call__(self, path: Path, *held: str, by: str = SEGFAULT) -> None:
        """Its file is at this path."""


@pytest.fixture
def die(tmp_path: Path) -> Die:
    """In a process that is forked."""

    def worker_dies(path: Path, *held: str, by: str = SEGFAULT) -> None:
        code = (
            "import ctypes, os\nfrom pathlib import Path\nfrom crawlog.streams.worker.suspects import Suspects\n"
            f"held = Suspects(Path({str(path)!r}))\nfor key in {held}: held.touch(key)\n{by}"
        )
        with (tmp_path / "said").open("wb") as said:
            assert forked(code, tmp_path, os.environ, said).wait()

    return worker_dies


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A worker's file."""
    return tmp_path / "suspects" / "fetch-0"


@pytest.fixture
def opened(path: Path) -> Iterator[Suspects]:
    """What the next bearer of the name knows."""
    held = Suspects(path)
    yield held
    held.close()


@pytest.mark.parametrize(
    ("deaths", "kills_limit", "verdict"),
    [
        (Deaths(), None, "normal"),
        (Deaths(1, 0, alone=True), None, "normal"),
        (Deaths(2, 0, alone=True), None, "alone"),
        (Deaths(9, 0, alone=False), None, "alone"),
        (Deaths(3, 0, alone=True), None, "give_up"),
        (Deaths(0, 200, alone=True), None, "normal"),
        (Deaths(2, 200, alone=True), None, "alone"),
        (Deaths(0, 2, alone=True), 5, "alone"),
        (Deaths(0, 4, alone=True), 5, "alone"),
        (Deaths(0, 5, alone=True), 5, "give_up"),
        (Deaths(0, 200, alone=False), 5, "alone"),
    ],
)
def test_three_deaths_condemn_what_was_alone_at_the_last(deaths: Deaths, kills_limit: int | None, verdict: str) -> None:
    """Kills from outside speak against a key only where a limit says so, and never against one among others."""
    assert judge(deaths, kills_limit) == verdict


def test_what_kills_its_worker_is_found_among_others(die: Die, path: Path) -> None:
    """Twice among others, then alone, then never again; the others are tried again and forgotten."""
    keys = [f"http://host/{n}" for n in range(20)]
    for _ in range(2):
        die(path, *keys)
    held = Suspects(path)
    assert {held.verdict(key) for key in keys} == {"alone"}
    for key in keys[1:]:
        held.touch(key)
        held.release(key)
    assert [held.verdict(key) for key in keys] == ["alone"] + 19 * ["normal"]
    die(path, keys[0])
    held = Suspects(path)
    assert held.verdict(keys[0]) == "give_up"
    held.release(keys[0])
    assert held.verdict(keys[0]) == "normal"
    held.close()


@pytest.mark.parametrize("by", [SEGFAULT, "os.abort()", BLOCKED])
def test_a_fault_of_the_process_is_known_by_its_traces(die: Die, path: Path, by: str) -> None:
    """A fatal signal leaves its traceback, a blocked loop its name."""
    for _ in range(3):
        die(path, "x", by=by)
    held = Suspects(path)
    assert held.verdict("x") == "give_up"
    held.close()


def test_kills_from_outside_condemn_nothing(die: Die, path: Path) -> None:
    """However many, though the same key was alone each time."""
    for _ in range(5):
        die(path, "x", by=KILLED)
    held = Suspects(path)
    assert held.verdict("x") == "normal"
    held.close()


def test_a_kill_for_want_of_memory_is_a_fault(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts them."""
    for kills in range(4):
        monkeypatch.setattr(suspects, "_oom_kills", lambda kills=kills: kills)
        held = Suspects(path)
        held.touch("x")
    assert held.verdict("x") == "give_up"
    held.close()


def test_a_key_handled_in_part_keeps_its_deaths(die: Die, path: Path) -> None:
    """It is not held any more, so later deaths are not its fault."""
    for _ in range(2):
        die(path, "a")
    held = Suspects(path)
    held.touch("a")
    held.lift("a")
    assert held.verdict("a") == "alone"
    die(path, by="held.touch('a'); held.lift('a'); " + SEGFAULT)
    held = Suspects(path)
    assert held.verdict("a") == "alone"
    held.release("a")
    assert held.verdict("a") == "normal"
    held.close()


def test_a_clean_stop_clears_the_file(die: Die, path: Path) -> None:
    """Nothing is held against anyone afterwards."""
    die(path, "x")
    held = Suspects(path)
    held.touch("x")
    held.close()
    assert not path.exists()
    held.touch("x")
    held.release("x")


@pytest.mark.parametrize("junk", [b"", b"\xff" * 20, b"\xff" * 200_000, b"crw1" + b"\xff" * 60])
def test_a_broken_file_says_nothing(path: Path, junk: bytes) -> None:
    """Garbage, as a power cut may leave it, is no reason to accuse anyone, nor to stay away."""
    path.parent.mkdir()
    path.write_bytes(junk)
    held = Suspects(path)
    held.touch("x")
    assert held.verdict("x") == "normal"
    held.close()


def test_a_folder_that_cannot_be_written_costs_only_the_protection(tmp_path: Path) -> None:
    """The worker works on."""
    (tmp_path / "file").write_text("")
    held = Suspects(tmp_path / "file" / "fetch-0")
    held.touch("x")
    held.release("x")
    assert held.verdict("x") == "normal"


def test_the_mapped_file_has_no_holes(path: Path) -> None:
    """A store into one ends the process where the disk is full."""
    held = Suspects(path)
    with path.open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == path.stat().st_size > 8 * 1024
    held.close()


def test_more_keys_than_slots_go_unnoted(path: Path) -> None:
    """The first ones are still noted, and a slot that is free again is used again."""
    held = Suspects(path, slots=2)
    for key in "abc":
        held.touch(key)
    held.release("a")
    held.touch("d")
    stored = path.read_bytes()
    assert [suspects._hash(key).to_bytes(8, sys.byteorder) in stored for key in "abcd"] == [False, True, False, True]
    held.close()


def test_a_note_costs_microseconds(opened: Suspects) -> None:
    """A page costs 200 µs and has two of them."""
    began = time.process_time()
    for n in range(10_000):
        key = f"http://host/{n}"
        opened.verdict(key)
        opened.touch(key)
        opened.release(key)
    assert (time.process_time() - began) / 10_000 < 50e-6


def test_what_kills_one_worker_after_the_other_is_found_sooner(die: Die, path: Path) -> None:
    """Where workers share: three deaths in all, whoever died; a worker that does not share sees its own alone."""
    die(path, "bad")
    die(path.with_name("fetch-1"), "bad")
    die(path.with_name("fetch-1"), "bad")
    Suspects(path.with_name("fetch-1")).touch("other")
    apart = Suspects(path)
    assert apart.verdict("bad") == "normal"
    shared = Suspects(path, shared=True)
    assert [shared.verdict(key) for key in ("bad", "good")] == ["give_up", "normal"]
    shared.release("bad")
    assert shared.verdict("bad") == "normal"
    assert shared.is_calm


def test_a_key_that_is_held_twice_is_held_until_both_are_over(die: Die, path: Path) -> None:
    """Two jobs may ask for one URL: what crashes the second is a crash all the same."""
    held = "['twice', 'twice']"
    code = f"for key in {held}: held.touch(key)\nheld.release('twice')\n{SEGFAULT}"
    for _ in range(2):
        die(path, by=code)
    opened = Suspects(path)
    assert opened.verdict("twice") == "alone"
    for _ in range(3):
        opened.touch("twice")
    for _ in range(3):
        opened.release("twice")
    opened.close()
    assert not path.exists()
