"""The commands in force, and what they mean for a job, a host, a stage. Pure; the log alone keeps them.

Every worker reads the same commands of crawl.control in the same order, so all obey the same. A command concerns the
dispatcher, never the fold: URLs that it keeps waiting stay queued.
"""

from collections.abc import Iterable
from typing import NamedTuple

from crawlog.schemas.control import Command
from crawlog.streams.url import InvalidUrl, serialise

_PORTS = {"http": "80", "https": "443"}


class Orders(NamedTuple):
    """The commands for one target, taken together.

    Attributes:
        paused: None of its URLs is handed out.
        stopped: A `run` does not wait for its URLs either: the job is stopped, or the host blocked.
        slow_s: Least rest between two requests to one host.
    """

    paused: bool = False
    stopped: bool = False
    slow_s: float = 0.0


FREE = Orders()


class Commands:
    """The newest command for each target."""

    def __init__(self, commands: Iterable[Command] = ()) -> None:
        self._newest: dict[tuple[str, str], Command] = {}
        self._of_jobs: dict[str, Orders] = {}  # asked for several times a request
        for command in commands:
            self.take(command)

    def take(self, command: Command) -> None:
        """Take a command that came after the others; `clear` acts once and changes none of them."""
        if command.action == "clear":
            return
        at = command.kind, _with_port(command.target) if command.host else command.target
        self._newest.pop(at, None)
        self._of_jobs.clear()
        if command.holds:
            self._newest[at] = command

    @property
    def in_force(self) -> list[Command]:
        return [self._newest[at] for at in sorted(self._newest)]

    def in_force_at(self, now: float) -> list[Command]:
        """Those whose time has not passed; `now` is UTC epoch seconds."""
        return [command for command in self.in_force if not command.is_over(now)]

    @property
    def holding_hosts(self) -> frozenset[Command]:
        return frozenset(one for one in self.in_force if one.host and one.action in ("pause", "block"))

    def of_job(self, name: str) -> Orders:
        """The commands for a job."""
        orders = self._of_jobs.get(name)
        if orders is None:
            orders = self._of_jobs[name] = _all([self._newest.get(("job", name))])
        return orders

    def reason(self, name: str) -> str:
        """Why a spider closed its job; empty if it did not."""
        command = self._newest.get(("job", name))
        return command.reason if command is not None else ""

    def given_at(self, name: str) -> float:
        """When the command for a job was given, UTC epoch seconds; 0 without one."""
        command = self._newest.get(("job", name))
        return command.at if command is not None else 0.0

    @property
    def of_exits(self) -> list[Command]:
        """The commands that keep exits from serving; a `rest` may be over."""
        return [command for (kind, _), command in self._newest.items() if kind == "exit"]

    def of_stage(self, name: str) -> Orders:
        return _all([self._newest.get(("stage", name))])

    def of_host(self, key: str) -> Orders:
        """The commands for a host, by all its names.

        Args:
            key: `scheme://name:port`.
        """
        if not self._newest:
            return FREE
        return _all(self._newest.get(("host", name)) for name in names_of(key))


def names_of(key: str) -> list[str]:
    """The names of a host in commands: its key, its name with and without port, and `.name` for it and each parent."""
    authority = key.partition("://")[2]
    name = authority.rpartition(":")[0]
    labels = name.split(".")
    return [key, authority, name, *("." + ".".join(labels[at:]) for at in range(len(labels)))]


def host_of(text: str) -> str:
    """A host as commands name it, from the forms that a person may write.

    Raises: ValueError: The text is not a host.
    """
    scheme, is_url, rest = text.strip().rpartition("://")
    name, port = _parts(rest.removesuffix("/"))
    try:
        bare = name.removeprefix(".").removesuffix(".")
        plain = serialise(f"{scheme or 'http'}://{bare}/").partition("://")[2][:-1]
    except InvalidUrl:
        raise ValueError(f"{text!r} is no host: http://name:port, name, name:port or .name") from None
    if is_url and port == f":{_PORTS.get(scheme.lower())}":
        port = ""
    host = f"{scheme.lower()}://{plain}" if is_url else "." * name.startswith(".") + plain
    return Command("resume", host=host + port).check().host


def _parts(authority: str) -> tuple[str, str]:
    name, colon, port = authority.rpartition(":")
    return (name, colon + port) if colon and port.isascii() and port.isdigit() else (authority, "")


def _with_port(host: str) -> str:
    scheme, is_url, authority = host.partition("://")
    if not is_url or authority.rpartition("]")[2].count(":"):
        return host
    return f"{host}:{_PORTS[scheme]}"


def _all(commands: Iterable[Command | None]) -> Orders:
    """Several commands together: each has its effect."""
    wanted = [command for command in commands if command is not None]
    if not wanted:
        return FREE
    actions = {command.action for command in wanted}
    return Orders(
        paused=bool(actions & {"pause", "stop", "block"}),
        stopped=bool(actions & {"stop", "block"}),
        slow_s=max(command.delay_s if command.action == "slow" else 0.0 for command in wanted),
    )
