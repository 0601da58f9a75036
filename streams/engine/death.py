"""The message for a broker that ended: its last error, and what helps."""

import contextlib
from pathlib import Path

_DAMAGED = "Its log is damaged: `crawlog repair --execute` has it cut there, and `run` mends it."

_CRASHED = (
    "Its Java crashed. If it does so again, its class archive may be damaged: remove `classes-*.jsa` from the folder "
    "engine.cache, ~/.cache/crawlog/kafka/VERSION without that setting. A new archive is made."
)

_SIGNS = ("ERROR", "Error", "Exception", "fatal error")  # One is in a line that tells of an error

# A word in a dying broker's output, and the advice for the user.
CAUSES = (
    ("CorruptRecordException", _DAMAGED),
    ("only permitted for segments with overflow", _DAMAGED),  # a first offset, which no CRC covers
    ("No space left on device", "The disk is full: free some space, or use another folder with `--data DIR`."),
    ("Address already in use", "Another program took its port meanwhile: run the command again, it takes a free one."),
    ("Failed to acquire lock", "Another broker runs on this folder: end it, or use another folder with `--data DIR`."),
    ("Permission denied", "The folder belongs to another user: use one of yours with `--data DIR`."),
    ("Read-only file system", "The folder is read-only: use another with `--data DIR`."),
    ("OutOfMemoryError", "Its heap is too small: raise it with `-s engine.heap_mb=512`."),
    ("Could not reserve enough space", "Too little memory for its heap: free some, or try `-s engine.heap_mb=128`."),
    ("fatal error has been detected by the Java", _CRASHED),
    ("Invalid cluster.id", "Its data belong to another cluster: use another folder with `--data DIR`."),
    ("ClassNotFoundException", "A jar is missing or broken: run `crawlog engine fetch`."),
    ("NoClassDefFoundError", "A jar is missing or broken: run `crawlog engine fetch`."),
)


def died(folder: Path, what: str, said: str | None = None) -> str:
    """The message for a broker that ended: its last error, and advice if the cause is known."""
    log = folder / "broker.log"
    if said is None:
        with contextlib.suppress(OSError):
            said = log.read_bytes()[-16_384:].decode(errors="replace")
    said = said or ""
    words = [line.strip() for line in said.splitlines() if any(sign in line for sign in _SIGNS)]
    last = words[-1][:300] if words else "it said nothing"
    advice = next((advice for sign, advice in CAUSES if sign in said), f"All it said is in {log}.")
    return f"{what} ({folder}): {last}.\n{advice}"
