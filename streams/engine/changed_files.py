"""Decides whether Kafka may trust its files: they are noted at its end, compared at its start, checked on a difference.

    a clean end ─► files.json: size and time of each file ─► next start: the same? Kafka trusts them
                                                          └► changed, killed or `recheck`: Kafka checks every batch, and
                                                             cuts a file before the first damaged one

Records that a check will cut are written down first (`segments.py`), so that their founds can be offered again.
"""

import json
import time
from pathlib import Path

from crawlog.streams import files
from crawlog.streams.errors import EngineError

from . import broker
from .jars import Report
from .lock import check_unused, folder_of, held

UNCHECKED = "unchecked"
FILES = "files.json"
CHANGED = "changed"
OFFER = "offer"

SHOWN = 3  # Changed files named in the message

# Kafka's files that tell it which segments need no check.
CLEAN_MARKS = (".kafka_cleanshutdown", "recovery-point-offset-checkpoint")


def note_files(folder: Path) -> None:
    files.write(folder / FILES, json.dumps(_found(folder)))


def before_start(data: Path, folder: Path, report: Report, *, checks: bool) -> None:
    """Compares the files with the note, and reports changed files to the user.

    Args:
        checks: Have the broker check the changed files.
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
    """Has the next broker check every batch of its files, and cut a file before its first damaged batch.

    Returns: A line for each cut, and one for the file that lists the lost records.

    Raises: EngineError: a broker runs.
    """
    with held(data) as folder:
        if broker.noted(folder) is not None:
            raise EngineError(f"Apache Kafka runs on {folder}; `crawlog down` stops it")
        check_unused(folder)
        return _distrust(data, folder, {path.name for path in (folder / "log").glob("*")})


def to_offer(folder: Path) -> list[Path]:
    """The files of the records that were cut off and are not in the log again."""
    note = folder / OFFER
    return [folder / name for name in files.read(note).splitlines()] if note.exists() else []


def record_files(data: Path) -> dict[str, list[int]]:
    """Size and modification time of each file of records; equal ones mean that the log has not changed."""
    return _found(folder_of(data))


def _found(folder: Path) -> dict[str, list[int]]:
    """Size and modification time, in nanoseconds, of each file of records."""
    paths = sorted((folder / "log").glob("*/*.log"))
    return {str(path.relative_to(folder / "log")): [(at := path.stat()).st_size, at.st_mtime_ns] for path in paths}


def _changed(folder: Path) -> list[str]:
    """The files of records that differ from the note of the last clean end; empty without a note.

    After a clean end Kafka trusts its files. A disk that silently changes bytes changes no time: the CRC of a batch
    shows that to readers.
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
    """Has the next broker check its files, and the next run check the whole log.

    Args:
        names: Folders of partitions whose lost records are written down.
    """
    from .segments import write_down  # imports aiokafka; commands that only start a broker do not need it

    file = _new_file(folder)
    ours = (path for name in names if not name.startswith("__") and (path := folder / "log" / name).is_dir())
    found = write_down(ours, file)
    if found:
        files.write(folder / OFFER, "\n".join([*(path.name for path in to_offer(folder)), file.name]))
    files.write(folder / UNCHECKED, "")
    for name in CLEAN_MARKS:
        (folder / "log" / name).unlink(missing_ok=True)
    for one in found:  # after all notes: a repetition finds no damage where the cut is made
        one.end()
    for note in (CHANGED, FILES):  # else the next start tells of these cuts as somebody's changes
        (folder / note).unlink(missing_ok=True)
    where = f"what could be read of it stands in {data / folder.name / file.name}"
    return [*(str(one.cut) for one in found), where] if found else []


def _new_file(folder: Path) -> Path:
    """The file for the records of a cut; several cuts may be made in one second."""
    name = f"cut-{time.strftime('%Y%m%dT%H%M%S')}"
    file, number = folder / f"{name}.jsonl", 1
    while file.exists():
        number += 1
        file = folder / f"{name}-{number}.jsonl"
    return file
