"""`crawlog control`: pause, resume, block, unblock, slow or stop a job, a host or a stage; cancel a job; list commands.

A command is one record on crawl.control, which any Kafka client may write as well; workers obey within two seconds, and
after any restart, until the next command for the same target.
"""

import time
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.control import Command, encode
from crawlog.schemas.urls import DEFAULT_JOB
from crawlog.streams.errors import Misconfigured
from crawlog.streams.frontier import Commands, host_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crawlog.schemas.control import Control
    from crawlog.streams.settings import Settings


def wanted(action: str, job: str, host: str, stage: str, delay_s: float) -> Command:
    """The command that the options ask for.

    Raises: Misconfigured: they make no sense; the message says what does.
    """
    try:
        named = host_of(host) if host else ""
        raw = {"action": action, "job": job, "host": named, "stage": stage, "delay_s": delay_s, "at": time.time()}
        return msgspec.convert(raw, Command).check()
    except ValueError as error:
        raise Misconfigured(f"crawlog control {action}: {error}\nSee `crawlog control --help`.") from None


def give(settings: "Settings", command: Command) -> str:
    """Put a command into the log; returns what to tell."""
    from crawlog.streams.log import Producer, Topics, control_entries, write_command

    topics = Topics(settings.kafka.prefix)
    said = control_entries(settings, topics)
    write_command(Producer(settings, "crawlog-control"), topics, command)
    return f"{described(command)}: {effect(said, command)}"


def effect(said: "Mapping[bytes, Control]", command: Command) -> str:
    """What a command will do, in words: also where it may have been meant for another name.

    Args:
        said: All that crawl.control said before.
    """
    if not command.holds:
        before = [entry for entry in said.values() if isinstance(entry, Command)]
        if Commands([*before, command]).in_force == Commands(before).in_force:
            return "nothing was in force for it; `crawlog control list` shows what is"
    elif command.job not in ("", DEFAULT_JOB) and f"job/{command.job}".encode() not in said:
        return "no such job is known yet; it holds for when there is one, `crawlog status` names those there are"
    if command.action == "block":
        return (
            "workers obey within 2 s, and after any restart; its URLs stay queued, no run waits for them,"
            f" and `crawlog control unblock --host {command.host}` lets them go on"
        )
    return "workers obey within 2 s, and after any restart"


def cancel(settings: "Settings", job: str) -> str:
    """End a job for good; returns what to tell.

    Raises: Misconfigured: there is no such job.
    """
    from crawlog.streams.log import cancel_job as end

    if end(settings, job) is None:
        raise Misconfigured(f"there is no job {job} in the log; `crawlog status` names those that there are.")
    return f"job {job} is cancelled; its queue stays in the log, `crawlog run --job {job} --fresh` crawls it anew"


def in_force(said: "Mapping[bytes, Control]") -> list[Command]:
    """The commands in force, of all that crawl.control says."""
    return Commands(entry for entry in said.values() if isinstance(entry, Command)).in_force


def listing(settings: "Settings", *, as_json: bool) -> list[str]:
    """The commands in force, a line each: in words, or as they stand in the log."""
    from crawlog.streams.log import Topics, control_entries

    found = in_force(control_entries(settings, Topics(settings.kafka.prefix)))
    if as_json:
        return [encode(command).decode() for command in found]
    return [described(command) for command in found] or ["no command is in force"]


def described(command: Command) -> str:
    """A command in words."""
    delay = f" to {command.delay_s:g} s" if command.action == "slow" else ""
    return f"{command.action} {command.kind} {command.target}{delay}"
