"""`crawlog control`: pause, resume, block, unblock, slow or stop a job, a host or a stage; cancel a job; list commands.

A command is one record on crawl.control; any Kafka client may write one. Workers obey within two seconds, also after a
restart, until the next command for the same target.
"""

import time
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.control import Command
from crawlog.schemas.urls import DEFAULT_JOB
from crawlog.streams.errors import Misconfigured
from crawlog.streams.frontier import Commands, host_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crawlog.schemas.control import Control
    from crawlog.streams.settings import Settings


def wanted(action: str, job: str, host: str, stage: str, delay_s: float) -> Command:
    """The command that the options describe.

    Raises: Misconfigured: the options do not fit together; the message names valid ones.
    """
    try:
        named = host_of(host) if host else ""
        raw = {"action": action, "job": job, "host": named, "stage": stage, "delay_s": delay_s, "at": time.time()}
        return msgspec.convert(raw, Command).check()
    except ValueError as error:
        raise Misconfigured(f"crawlog control {action}: {error}\nSee `crawlog control --help`.") from None


class Given(msgspec.Struct):
    """A command that was written to the log.

    Attributes:
        changes: Whether it changes the commands in force.
        knows_job: Whether the log has its job; True if it names none.
    """

    command: Command
    changes: bool
    knows_job: bool


def give(settings: "Settings", command: Command) -> Given:
    """Writes a command to the log."""
    from crawlog.streams.log import CommandProducer, Topics, control_entries, write_command

    topics = Topics(settings.kafka.prefix)
    said = control_entries(settings, topics)
    write_command(CommandProducer(settings, "crawlog-control"), topics, command)
    return given(said, command)


def given(said: "Mapping[bytes, Control]", command: Command) -> Given:
    """A command, with its effect on the commands before it.

    Args:
        said: The newest records of crawl.control before the command, by key.
    """
    before = [entry for entry in said.values() if isinstance(entry, Command)]
    changes = Commands([*before, command]).in_force != Commands(before).in_force
    return Given(command, changes, command.job in ("", DEFAULT_JOB) or f"job/{command.job}".encode() in said)


def in_force(said: "Mapping[bytes, Control]") -> list[Command]:
    """The commands in force among these records of crawl.control."""
    return Commands(entry for entry in said.values() if isinstance(entry, Command)).in_force


def listed(settings: "Settings") -> list[Command]:
    """The commands in force."""
    from crawlog.streams.log import Topics, control_entries

    return in_force(control_entries(settings, Topics(settings.kafka.prefix)))
