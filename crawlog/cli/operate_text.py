"""The answers of `crawlog control` and `dead`: lines, or a JSON object each."""

import json
from typing import Any

import msgspec

from crawlog.commands.control import Given
from crawlog.commands.dead import Dropping, Listing, Opened, Redriving
from crawlog.outcome import counted
from crawlog.schemas.control import Command, encode
from crawlog.streams.dead_letters import Letter, letter_fate, letters_by_error
from crawlog.streams.printable import utc_text
from crawlog.terminal import hinted


def given_text(given: Given) -> str:
    return f"{described(given.command)}: {effect(given)}"


def effect(given: Given) -> str:
    """The effect of a command in words, with a warning if its target may be a wrong name."""
    command = given.command
    if command.action == "clear":
        return "workers end its back-off within 2 s; its URLs are asked for after its delay, also those tried before"
    if not command.holds:
        if not given.changes:
            return "nothing was in force for it; `crawlog control list` shows what is"
    elif not given.knows_job:
        return "no such job is known yet; it holds for when there is one, `crawlog status` names those there are"
    if command.action == "block":
        return (
            "workers obey within 2 s, and after any restart; its URLs stay queued, no run waits for them,"
            f" and `crawlog control unblock --host {command.host}` lets them go on"
        )
    return "workers obey within 2 s, and after any restart"


def cancelled(job: str) -> str:
    return f"job {job} is cancelled; its queue stays in the log, `crawlog run --job {job} --fresh` crawls it anew"


def command_lines(commands: list[Command]) -> list[str]:
    return [described(command) for command in commands] or ["no command is in force"]


def command_json(commands: list[Command]) -> list[str]:
    """The same as JSON, as in the log."""
    return [encode(command).decode() for command in commands]


def described(command: Command) -> str:
    """A command in words."""
    delay = {"slow": f" to {command.delay_s:g} s", "rest": f" for {command.delay_s:g} s"}.get(command.action, "")
    return f"{command.action} {command.kind} {command.target}{delay}"


SHOWN_BYTES = 4096  # Bytes of a record's value that `show` prints


def list_lines(listing: Listing) -> list[str]:
    """The letters by error, the commonest first."""
    lines = _grouped(listing.letters, {letter.offset for letter in listing.shown})
    left_out = f", the newest {len(listing.shown)} shown" if len(listing.shown) < len(listing.letters) else ""
    dealt_with = f"{listing.closed} dealt with" + (" (--all shows them)" if listing.closed else "")
    return [*lines, f"{counted(len(listing.letters), 'dead letter')}{left_out}; {dealt_with}"]


def list_json(listing: Listing) -> list[str]:
    return [json.dumps(_as_dict(letter)) for letter in listing.shown]


def _grouped(letters: list[Letter], shown: set[int]) -> list[str]:
    """A line for each error, and below it a line for each shown letter. A limit hides letters, but no error."""
    lines = []
    for group in letters_by_error(letters):
        newest = group[-1]
        lines.append(f"{counted(len(group), 'dead letter')} of {newest.stage or '?'}: {newest.error}")
        lines += [_entry(letter) for letter in group if letter.offset in shown]
    return lines


def _entry(letter: Letter) -> str:
    """A letter's line below its error."""
    job = f"  job {letter.job}" if letter.job else ""
    return f"{letter.offset:>8}  {utc_text(letter.at)}{job}  {letter.url or _place(letter)}{_became(letter)}"


def _line(letter: Letter) -> str:
    """A letter's line with its error."""
    job = f" job {letter.job}" if letter.job else ""
    url = f"  {letter.url}" if letter.url else ""
    who = f"{letter.stage or '?'}{job}{url}"
    return f"{letter.offset:>8}  {utc_text(letter.at)}  {who}  {_place(letter)}{_became(letter)}  {letter.error}"


def _place(letter: Letter) -> str:
    topic, partition, offset = letter.place
    return f"{topic}[{partition}]:{offset}"


def _became(letter: Letter) -> str:
    """The number of tries, and how the letter was handled."""
    tries = f", try {letter.tries}" if letter.tries > 1 else ""
    return tries + (f" [{letter_fate(letter)}]" if letter.handled else "")


def _as_dict(letter: Letter) -> dict[str, Any]:
    topic, partition, offset = letter.place
    fields: dict[str, Any] = msgspec.structs.asdict(letter)
    del fields["place"]
    return fields | {"topic": topic, "partition": partition, "record_offset": offset}


def show_lines(opened: Opened) -> list[str]:
    """A letter with its headers, its traceback and its record."""
    lines = [_line(opened.letter).strip(), f"  key {opened.key!r:.200}"]
    lines += [f"  header {name}: {text}" for name, text in opened.headers.items()]
    lines += ["", *opened.traceback.rstrip().splitlines()] if opened.traceback else []
    return [*lines, "", *_pretty(opened.value)]


def show_json(opened: Opened) -> str:
    """The same as one object."""
    fields = _as_dict(opened.letter) | {"traceback": opened.traceback, "headers": opened.headers}
    key = None if opened.key is None else opened.key.decode("utf-8", "replace")
    value = None if opened.value is None else opened.value.decode("utf-8", "replace")
    return json.dumps(fields | {"key": key, "value": value})


def _pretty(value: bytes | None) -> list[str]:
    """The first `SHOWN_BYTES` of a record's value: JSON indented, other text as it is."""
    if value is None:
        return ["(the record was as large as a record may be: it lies at its place only)"]
    try:
        text = json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = value[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    cut = [f"… {len(value):,} bytes in all"] if len(text) > SHOWN_BYTES or len(value) > len(text.encode()) else []
    return [*text[:SHOWN_BYTES].splitlines(), *cut]


def redrive_lines(redriving: Redriving, way: str = "--execute does it") -> list[str]:
    """Lines about the records that stay, those that go back, and whether these were sent, or the way to have that."""
    lines = [f"{_numbers(group)} stays: {why}" for group, why in redriving.staying]
    for group in redriving.going:
        topic, partition, _ = group[0].place
        size = "its body from its place" if group[0].size_bytes is None else f"{group[0].size_bytes:,} bytes"
        lines.append(f"{_numbers(group)} → {topic}[{partition}], {size}, try {group[0].tries + 1}")
    if redriving.sent is None:
        return [*lines, f"{counted(len(redriving.going), 'record')} would go back to the log; {way}"]
    sent = counted(redriving.sent, "record")
    return [*lines, f"{sent} went back to the log, acknowledged; workers take them as any other"]


def drop_lines(dropping: Dropping) -> list[str]:
    """Lines about the letters, and whether they are laid aside."""
    lines = [_line(letter) for letter in dropping.letters]
    count = counted(len(dropping.letters), "dead letter")
    if not dropping.done:
        return [*lines, f"{count} would be laid aside; --execute does it"]
    return [*lines, f"{count} laid aside, {hinted('still in the log (`crawlog dead list --all`)')}"]


def _numbers(group: list[Letter]) -> str:
    return ", ".join(str(letter.offset) for letter in group)
