"""Whether Kafka may trust its files: noted when it ends, compared when it starts, checked where they differ.

    a clean end ─► files.json: size and time of each file ─► next start: the same? Kafka trusts them
                                                          └► changed, killed or `recheck`: Kafka checks every batch, and
                                                             cuts a file before the first damaged one

What a check is about to cut is written down before (`segments.py`), so that its founds can be offered again.
"""

import json
import time
from pathlib import Path

from crawlog.streams import files
from crawlog.streams.errors import EngineError

from . import broker
from .jars import Report
from .lock import held

UNCHECKED = "unchecked"
FILES = "files.json"
CHANGED = "changed"
OFFER = "offer"

SHOWN = 3
"""Files that are named, of those that were changed."""

CLEAN_MARKS = (".kafka_cleanshutdown", "recovery-point-offset-checkpoint")
"""Kafka's files that say which segments of the log need no check."""


def note_files(folder: Path) -> None:
    """Writes down how the broker, which ended by itself, left its files."""
    files.write(folder / FILES, json.dumps(_found(folder)))


def before_start(data: Path, folder: Path, report: Report, *, checks: bool) -> None:
    """Compares the files with the note, and tells the user what was changed meanwhile.

    Args:
        checks: Have the broker check those that were changed.
    """
    if (folder / "broker.json").exists():
        files.write(folder / UNCHECKED, "")
    elif changed := _changed(folder):
        files.write(folder / CHANGED, "\n".join(changed))
        report(_changes_told(changed, checks=checks))
    if checks and (folder / CHANGED).exists():
        names = {name.partition("/")[0] for name in files.read(folder / CHANGED).splitlines()}
        for line in _distrust(data, folder, names):
            report(line)
    (folder / FILES).unlink(missing_ok=True)


def recheck(data: Path) -> list[str]:
    """Has the next broker check each batch of its files, and cut a file before the first one that is damaged.

    Returns: What will be cut, a line each, and where it is written down.

    Raises: EngineError: a broker runs.
    """
    with held(data) as folder:
        if broker.noted(folder) is not None:
            raise EngineError(f"Apache Kafka runs on {folder}; `crawlog down` stops it")
        return _distrust(data, folder, {path.name for path in (folder / "log").iterdir()})


def _found(folder: Path) -> dict[str, list[int]]:
    """Size and time of change, in nanoseconds, of each file of records."""
    paths = sorted((folder / "log").glob("*/*.log"))
    return {str(path.relative_to(folder / "log")): [(at := path.stat()).st_size, at.st_mtime_ns] for path in paths}


def _changed(folder: Path) -> list[str]:
    """The files of records that are not as the last broker left them; none where it did not end by itself.

    A broker trusts its files then. A disk that changes bytes in silence changes no time: readers see that by the CRC.
    """
    try:
        left = json.loads(files.read(folder / FILES))
    except (FileNotFoundError, ValueError):
        return []
    found = _found(folder)
    return sorted(name for name in left.keys() | found.keys() if left.get(name) != found.get(name))


def _changes_told(names: list[str], *, checks: bool) -> str:
    told = ", ".join(names[:SHOWN]) + f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
    then = (
        "it checks all of them, and ends each before what is damaged" if checks else "the next `run` has it check them"
    )
    return f"files of Apache Kafka were changed while it did not run: {told}; {then}"


def _distrust(data: Path, folder: Path, names: set[str]) -> list[str]:
    """Lets the broker that starts next check its files, and the run that it works for the whole log.

    Args:
        names: Folders of partitions: what these lose is written down.
    """
    from .segments import write_down  # with aiokafka, which a command that only starts a broker does without

    file = folder / f"cut-{time.strftime('%Y%m%dT%H%M%S')}.jsonl"
    ours = (path for name in names if not name.startswith("__") and (path := folder / "log" / name).is_dir())
    cuts = write_down((path for path in ours if "-" in path.name), file)
    if cuts:
        files.write(folder / OFFER, file.name)
    files.write(folder / UNCHECKED, "")
    for name in CLEAN_MARKS:
        (folder / "log" / name).unlink(missing_ok=True)
    (folder / CHANGED).unlink(missing_ok=True)
    where = f"what could be read of it stands in {data / folder.name / file.name}"
    return [*map(str, cuts), where] if cuts else []
