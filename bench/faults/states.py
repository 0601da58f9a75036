"""The states on disk: deleted, cut short, damaged, of another cluster, ahead of the log. Each must be rebuilt."""

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rocksdict import Options, Rdict

from bench.faults.crawl import Crawl
from bench.faults.schedule import Fault
from crawlog.streams.fold import rows
from crawlog.streams.state.partition import CACHE_COLUMN

AHEAD = 1_000_000


def _delete(state: Path, dice: random.Random) -> None:  # noqa: ARG001  # one signature for all
    shutil.rmtree(state)


def _cut(state: Path, dice: random.Random) -> None:
    """Cuts the largest files in half, as a power cut would."""
    for folder in _partitions(state):
        for file in _largest(folder, 2):
            size = file.stat().st_size
            with file.open("rb+") as opened:
                opened.truncate(dice.randrange(size // 2 + 1))


def _damage(state: Path, dice: random.Random) -> None:
    """Turns a few bytes of the largest files into others."""
    for folder in _partitions(state):
        for file in _largest(folder, 2):
            with file.open("rb+") as opened:
                for _ in range(8):
                    opened.seek(dice.randrange(max(file.stat().st_size, 1)))
                    opened.write(dice.randbytes(4))


def _of_another_cluster(state: Path, dice: random.Random) -> None:  # noqa: ARG001  # so too
    _change_meta(state, lambda meta: msgspec.structs.replace(meta, cluster="another-cluster"))


def _ahead(state: Path, dice: random.Random) -> None:  # noqa: ARG001  # so too
    _change_meta(state, lambda meta: msgspec.structs.replace(meta, offset=meta.offset + AHEAD))


def _change_meta(state: Path, change: Callable[[rows.Meta], rows.Meta]) -> None:
    for folder in _partitions(state):
        database = Rdict(
            str(folder), Options(raw_mode=True), column_families={CACHE_COLUMN: Options(raw_mode=True)}
        )  # fmt: skip
        found = database.get(rows.META)
        if found is not None:
            database[rows.META] = rows.pack(change(rows.read_meta(found)))
        database.close()


def _partitions(state: Path) -> list[Path]:
    return [folder for folder in sorted(state.iterdir()) if folder.name.isdigit()]


def _largest(folder: Path, count: int) -> list[Path]:
    files = [file for file in folder.iterdir() if file.is_file() and file.suffix in (".sst", ".log")]
    files += [file for file in folder.iterdir() if file.name.startswith("MANIFEST")]
    return sorted(files, key=lambda file: -file.stat().st_size)[:count]


DEEDS: dict[str, Callable[[Path, random.Random], None]] = {
    "deleted": _delete,
    "cut": _cut,
    "damaged": _damage,
    "of another cluster": _of_another_cluster,
    "ahead of the log": _ahead,
}


class States(Fault):
    """Everything is killed, the states are spoilt, and the same command goes on."""

    name = "state"
    says = "state deleted, cut short, damaged, of another cluster, ahead of the log"
    again_percent = 10.0

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Each once, in some order."""
        deeds = sorted(DEEDS, key=lambda _: dice.random())
        silences = dict.fromkeys(DEEDS, 0.0)
        for number, deed in enumerate(deeds):
            if not crawl.until((number + 0.5) / (len(deeds) + 1), 600) or not crawl.note(deed):
                break
            crawl.kill_all()
            for state in crawl.states():
                DEEDS[deed](state, dice)
            again = time.monotonic()
            crawl.start()
            silences[deed] = crawl.until_asked(again)
        return {f"first fetch, {deed} s": silence for deed, silence in silences.items()}
