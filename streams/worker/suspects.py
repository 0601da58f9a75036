"""Records which keys a worker handles, so that a key that kills its worker is found and finally given up.

A worker writes a key (a URL, or a page's place) into its own small file before it handles the key, and removes it
afterwards. The file is mapped, so a write is a memory store without a system call. No fsync: the file need only outlive
the process. The next worker of the same name opens the file and sees which keys were held.

The file also says how the worker died. faulthandler writes the traceback of a fatal signal, `blame` notes a blocked
event loop, and a higher kernel count of out-of-memory kills is a crash too. Any other death, such as by `kill -9` or a
silent exit, says little: it may come from outside, again and again, without any page's fault.

    file: header | slots × 8 bytes, a key's hash each | rows × 16 bytes, deaths of a key | text of a fatal error
"""

import contextlib
import faulthandler
import mmap
import os
import signal
import struct
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

import structlog
import xxhash

from crawlog.streams import files

log = structlog.get_logger()

Verdict = Literal["normal", "alone", "give_up"]

ALONE_AFTER = 2  # Deaths after which a key is handled alone

GIVE_UP_AFTER = 3  # Deaths after which a key is given up, if it was alone at the last one

_HEADER = struct.Struct("=4sIQQ")
_ROW = struct.Struct("=QBB?xxxxx")
_SLOT = struct.Struct("=Q")
_MAGIC = b"crw1"
_TEXT_BYTES = 64 << 10


class Deaths(NamedTuple):
    """The deaths of workers that held a key.

    Attributes:
        crashes: Deaths by a fault of the process itself: a fatal signal, no memory, a blocked loop.
        kills: Deaths that may have come from outside.
        alone: Whether no other key was held at the last one.
    """

    crashes: int = 0
    kills: int = 0
    alone: bool = False

    def after(self, *, crash: bool, alone: bool) -> "Deaths":
        """With one more death."""
        crashes, kills = self.crashes + crash, self.kills + (not crash)
        return Deaths(min(crashes, 255), min(kills, 255), alone)

    def and_those(self, others: "Deaths") -> "Deaths":
        return Deaths(self.crashes + others.crashes, self.kills + others.kills, self.alone or others.alone)


def judge(deaths: Deaths, kills_limit: int | None) -> Verdict:
    """How to handle a key; it is given up only if it was alone at the last death.

    Args:
        kills_limit: Deaths, kills from outside included, after which a key is given up; None ignores those kills.
    """
    known, counted = deaths.crashes, deaths.crashes + (deaths.kills if kills_limit is not None else 0)
    if deaths.alone and (known >= GIVE_UP_AFTER or (kills_limit is not None and counted >= kills_limit)):
        return "give_up"
    return "alone" if counted >= ALONE_AFTER else "normal"


class Suspects:
    """The keys that one worker handles now, and the deaths that earlier keys caused. One process at a time uses a path.

    If the file cannot be opened or written, the protection is lost and the worker goes on.

    Args:
        path: Named after the worker; the next worker of that name reads it.
        kills_limit: See `judge`. Only where few keys are held at a time, each briefly: otherwise many kills from
            outside would condemn keys that are merely slow.
        slots: Keys held at a time; further keys are not noted.
        shared: Whether deaths in the other files of the folder count too: a key that kills its worker moves with its
            partition to another worker, and back.
    """

    def __init__(self, path: Path, kills_limit: int | None = None, slots: int = 1024, *, shared: bool = False) -> None:
        self._path = path
        self._shared = shared
        self._others: dict[int, Deaths] = {}
        self._limit = kills_limit
        self._slots = slots
        self._held: dict[str, int] = {}
        self._again: Counter[str] = Counter()
        self._free = list(range(slots - 1, -1, -1))
        self._rows: dict[int, Deaths] = {}
        self._map: mmap.mmap | None = None
        self._marks: memoryview | None = None  # the slots within the map
        self._text = -1
        try:
            self._open()
        except OSError as error:
            self._broken(error)

    def touch(self, key: str) -> None:
        """Note a key before it is handled."""
        if key in self._held:
            self._again[key] += 1
            return
        if self._marks is None or not self._free:
            return
        slot = self._held[key] = self._free.pop()
        self._marks[slot] = _hash(key)

    def release(self, key: str) -> None:
        """Remove a key that was handled without harm; when nobody holds it any more, forget its earlier deaths."""
        if not self._again[key]:
            self.forget(key)
        self.lift(key)

    def forget(self, key: str) -> None:
        """Forget the earlier deaths of a key, held or not."""
        if self._others:
            self._others.pop(_hash(key), None)
        if self._rows and self._rows.pop(_hash(key), None) is not None:
            self._write_rows()

    def lift(self, key: str) -> None:
        """Remove a key that is handled further later: its earlier deaths stand."""
        if self._again[key]:  # two jobs may ask for one URL
            self._again[key] -= 1
            return
        self._again.pop(key, None)
        slot = self._held.pop(key, None)
        if slot is not None:
            self._free.append(slot)
            if self._marks is not None:
                self._marks[slot] = 0

    def verdict(self, key: str) -> Verdict:
        """Whether a key may be handled beside others, only alone, or never again."""
        if not self._rows and not self._others:
            return "normal"
        hashed = _hash(key)
        deaths, others = self._rows.get(hashed), self._others.get(hashed)
        if deaths is None or others is None:
            deaths = deaths or others
            return "normal" if deaths is None else judge(deaths, self._limit)
        return judge(deaths.and_those(others), self._limit)

    @property
    def is_calm(self) -> bool:
        """Whether no key has a death on record."""
        return not self._rows and not self._others

    def blame(self, why: str) -> None:
        """Note that this process is about to end, through a fault of a key that it holds."""
        if self._text >= 0:
            with contextlib.suppress(OSError):
                os.write(self._text, why.encode() + b"\n")

    def catch(self, number: signal.Signals) -> None:
        """Treat this signal as a fatal one: it writes a traceback, and the death counts against the held keys."""
        if self._text >= 0:
            faulthandler.register(number, self._text, all_threads=False, chain=True)

    def close(self) -> None:
        """Remove the file at a clean stop: no key is suspected."""
        if self._map is not None:
            self._let_go()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _open(self) -> None:
        files.own(self._path.parent)
        with contextlib.suppress(FileNotFoundError):
            self._learn(self._path.read_bytes())
        if self._shared:
            self._ask_others()
        new = self._path.with_suffix(".new")
        header = _HEADER.pack(_MAGIC, self._slots, _boot(), _oom_kills())
        # all bytes are written: on a full disk a store into a hole of the file would end the process by SIGBUS
        new.write_bytes(header + bytes(self._slots * _SLOT.size) + self._packed_rows())
        with new.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self._rows_at + self._slots * _ROW.size)
        self._marks = memoryview(self._map)[_HEADER.size : self._rows_at].cast("Q")
        new.replace(self._path)
        self._text = files.opened(self._path, os.O_WRONLY | os.O_APPEND)
        faulthandler.enable(self._text)

    def _learn(self, stored: bytes) -> None:
        """Read what the last worker of this name left; a damaged file, or one of another boot, is ignored."""
        rows = _rows_in(stored)
        if rows is None:
            return
        self._rows = rows
        _, slots, _, oom_kills = _HEADER.unpack_from(stored)
        rows_at = _HEADER.size + slots * _SLOT.size
        end = rows_at + slots * _ROW.size
        held = [key for (key,) in _SLOT.iter_unpack(stored[_HEADER.size : rows_at]) if key]
        if not held:
            return
        text = stored[end : end + _TEXT_BYTES].decode(errors="replace").strip()
        crash = bool(text) or _oom_kills() > oom_kills
        if not crash and self._limit is None:
            return
        for key in held:
            self._rows[key] = self._rows.get(key, Deaths()).after(crash=crash, alone=len(held) == 1)
        self._trim()
        if crash:
            log.error("crashed_before", held=len(held), **_fault(text))

    def _ask_others(self) -> None:
        for beside in self._path.parent.iterdir():
            if beside in (self._path, self._path.with_suffix(".new")):
                continue
            with contextlib.suppress(OSError):
                for key, deaths in (_rows_in(beside.read_bytes()) or {}).items():
                    self._others[key] = self._others.get(key, Deaths()).and_those(deaths)

    def _trim(self) -> None:
        """Keep the keys with most deaths, as many as the file has rows."""
        if len(self._rows) > self._slots:
            worst = sorted(self._rows.items(), key=lambda row: row[1][:2], reverse=True)
            self._rows = dict(worst[: self._slots])

    @property
    def _rows_at(self) -> int:
        return _HEADER.size + self._slots * _SLOT.size

    def _packed_rows(self) -> bytes:
        rows = b"".join(_ROW.pack(key, *deaths) for key, deaths in self._rows.items())
        return rows.ljust(self._slots * _ROW.size, b"\0")

    def _write_rows(self) -> None:
        if self._map is not None:
            self._map[self._rows_at : self._rows_at + self._slots * _ROW.size] = self._packed_rows()

    def _broken(self, error: OSError) -> None:
        log.warning("suspects_unwritten", path=str(self._path), error=str(error), then="crash loops go unnoticed")
        self._let_go()

    def _let_go(self) -> None:
        if self._text >= 0:
            faulthandler.disable()  # before another file can get this descriptor
            os.close(self._text)
        if self._marks is not None:
            self._marks.release()
        if self._map is not None:
            self._map.close()
        self._map = self._marks = None
        self._text = -1


def _rows_in(stored: bytes) -> dict[int, Deaths] | None:
    """Deaths by key in a file; None if it is damaged or of another boot."""
    if len(stored) < _HEADER.size:
        return None
    magic, slots, boot, _ = _HEADER.unpack_from(stored)
    rows_at = _HEADER.size + slots * _SLOT.size
    end = rows_at + slots * _ROW.size
    if magic != _MAGIC or boot != _boot() or len(stored) < end:
        return None
    return {key: Deaths(*deaths) for key, *deaths in _ROW.iter_unpack(stored[rows_at:end]) if key}


def _fault(text: str) -> dict[str, str]:
    """The error and the top frame of a traceback by faulthandler."""
    if not text:
        return {"fault": "killed for want of memory"}
    current = text.partition("Current thread")[2] or text  # other threads only wait
    at = next((line.strip() for line in current.splitlines() if line.startswith("  File")), "")
    return {"fault": text.splitlines()[0], "at": at}


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode()) or 1


def _boot() -> int:
    """Identifies the machine's boot: after a power cut, a file without fsync may hold any bytes."""
    try:
        return xxhash.xxh3_64_intdigest(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return 0


def _oom_kills() -> int:
    """The kernel's count of out-of-memory kills since boot; 0 if it gives none."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
