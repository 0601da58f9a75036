"""`crawlog control`: pause, resume, block, slow or stop a job, a host or a stage.

A command is one record on crawl.control; any Kafka client may write one. Workers obey within two seconds, also after a
restart, until the next command for the same target.
"""

import getpass
import platform
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.control import Command
from crawlog.schemas.urls import DEFAULT_JOB
from crawlog.streams.errors import Misconfigured
from crawlog.streams.jobs import Commands, ControlState, host_of

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


def wanted(action: str, job: str, host: str, stage: str, delay_s: float, exit_name: str = "") -> Command:
    """The command that the options describe.

    Raises: Misconfigured: the options do not fit together; the message names valid ones.
    """
    try:
        named = host_of(host) if host else ""
        raw = {"action": action, "job": job, "host": named, "stage": stage, "delay_s": delay_s, "at": time.time()}
        raw["exit"] = exit_name
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
    from crawlog.streams.control import read_control, write_command
    from crawlog.streams.log import CommandProducer, Topics

    topics = Topics(settings.kafka.prefix)
    control = read_control(settings, topics)
    write_command(CommandProducer(settings, "crawlog-control"), topics, command)
    return given(control, command)


def given(control: ControlState, command: Command) -> Given:
    """A command, with its effect on the commands before it; `control` is the state before it."""
    before = control.of(Command)
    changes = Commands([*before, command]).in_force != Commands(before).in_force
    return Given(command, changes, command.job in ("", DEFAULT_JOB) or control.job(command.job) is not None)


def listed(settings: "Settings") -> list[Command]:
    """The commands in force."""
    from crawlog.streams.control import read_control
    from crawlog.streams.log import Topics

    return read_control(settings, Topics(settings.kafka.prefix)).commands.in_force_at(time.time())


def whoever() -> str:
    """The user and machine of this command, for people."""
    with suppress(OSError, KeyError):
        return f"{getpass.getuser()}@{platform.node() or 'host'}"
    return platform.node()
