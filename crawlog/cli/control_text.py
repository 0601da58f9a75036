"""The answers of `crawlog control`."""

from crawlog.commands.control import Given
from crawlog.schemas.control import Command, encode


def given_text(given: Given) -> str:
    """A command that was written to the log, and its effect."""
    return f"{described(given.command)}: {effect(given)}"


def effect(given: Given) -> str:
    """The effect of a command in words, with a warning if its target may be a wrong name."""
    command = given.command
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
    """A message about a cancelled job."""
    return f"job {job} is cancelled; its queue stays in the log, `crawlog run --job {job} --fresh` crawls it anew"


def list_lines(commands: list[Command]) -> list[str]:
    """The commands in force in words, a line each."""
    return [described(command) for command in commands] or ["no command is in force"]


def list_json(commands: list[Command]) -> list[str]:
    """The same as JSON, as in the log."""
    return [encode(command).decode() for command in commands]


def described(command: Command) -> str:
    """A command in words."""
    delay = f" to {command.delay_s:g} s" if command.action == "slow" else ""
    return f"{command.action} {command.kind} {command.target}{delay}"
