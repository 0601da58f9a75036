"""A command ends the back-off of a host, and keeps exits from serving."""

import pytest

from crawlog.schemas import control
from crawlog.schemas.control import Command
from crawlog.streams.exits import read_exit
from crawlog.streams.exits.exits import Exits
from crawlog.streams.frontier.host import Task
from crawlog.streams.jobs.commands import Commands
from tests.support.dispatching import WALL, World, pages


def backing_off() -> tuple[World, Task]:
    """A host with two URLs rests for 100 s; one of them waits for its next attempt."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2))
    task = world.next_page()
    world.retry(task, 100.0, 100.0)
    world.fold_dones()
    assert world.frontier.next() is None
    return world, task


@pytest.mark.parametrize("name", ["http://a.com", "http://a.com:80", "a.com", "a.com:80", ".com"])
def test_a_cleared_host_is_asked_again_after_its_delay(name: str) -> None:
    """All its URLs, those for another attempt too; and no sooner than its delay."""
    world, task = backing_off()
    (host,) = world.frontier.clear(name)
    assert host.failures == 0
    assert world.frontier.next() is None
    world.due.clear()
    world.hosts[host.key].rests_until = world.clock + world.rests.delay_s
    world.pass_time(world.rests.delay_s)
    again = world.next_page()
    world.fetched(again)
    world.fold_dones()
    world.pass_time(world.rests.delay_s)
    assert {again.row.url, world.next_page().row.url} == {"http://a.com/0", "http://a.com/1"}
    assert task.row.url in {"http://a.com/0", "http://a.com/1"}


def test_other_hosts_keep_their_rest() -> None:
    """Only the named host is cleared."""
    world, _ = backing_off()
    assert world.frontier.clear("b.com") == []
    world.pass_time(50.0)
    assert world.frontier.next() is None


def test_a_sleeping_host_is_cleared_too() -> None:
    """Only few of very many hosts are in memory; its row knows of its rest."""
    world, task = backing_off()
    world.frontier.owned[0].forget(task.host, world.clock + 100.0)
    (host,) = world.frontier.clear("a.com")
    world.hosts[host.key].rests_until = world.clock + world.rests.delay_s
    world.due.clear()
    world.pass_time(world.rests.delay_s)
    assert world.next_page().host is host


def test_clear_ends_no_other_command_for_the_host() -> None:
    """It acts once: the newest other command stays in force."""
    commands = Commands([Command("block", host="a.com"), Command("clear", host="a.com")])
    assert [one.action for one in commands.in_force] == ["block"]


def test_a_rest_of_an_exit_counts_from_when_it_was_ordered_and_ends_by_itself() -> None:
    """Also on a worker that starts meanwhile; `pause` holds until `resume`."""
    world = World()
    exits = Exits([read_exit("one=http://10.0.0.1:1"), read_exit("two=http://10.0.0.2:1")])
    commands = Commands([Command("rest", exit="one", delay_s=60.0, at=WALL - 20.0)])
    world.frontier.obey(commands)
    world.frontier.schedule.use(exits)  # they are read after the commands

    def rests() -> dict[str, float]:
        return {name: one.rests_s for name, one in exits.figures(world.clock).items()}

    assert rests() == {"one": 40.0, "two": 0.0}
    world.pass_time(41.0)
    assert rests() == {"one": 0.0, "two": 0.0}
    assert [commands.in_force_at(at) for at in (WALL + 39.0, WALL + 41.0)] == [commands.in_force, []]
    commands.take(Command("pause", exit="two"))
    world.frontier.obey(commands)
    world.pass_time(100_000.0)
    assert rests()["two"] > 100_000
    commands.take(Command("resume", exit="two"))
    world.frontier.obey(commands)
    assert rests() == {"one": 0.0, "two": 0.0}


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (Command("clear", host="a.com"), b"command/clear/a.com"),
        (Command("rest", exit="de-1", delay_s=5.0), b"command/exit/de-1"),
    ],
)
def test_a_command_has_a_key_of_its_own(command: Command, key: bytes) -> None:
    """So compaction keeps the command in force for a host beside its last `clear`."""
    assert control.key(command) == key
    assert control.decode(key, control.encode(command)) == command


@pytest.mark.parametrize(
    "command", [Command("rest", exit="a"), Command("clear", exit="a"), Command("rest", host="a.com", delay_s=1.0)]
)
def test_what_cannot_be_ordered_is_refused(command: Command) -> None:
    """A rest has a length and an exit; an exit has no back-off to clear."""
    with pytest.raises(ValueError, match=r"delay_s|cannot be given"):
        command.check()


def test_tombstones_end_the_commands_of_an_exit_and_nothing_by_a_clear() -> None:
    """Any client may write one."""
    commands = Commands([Command("pause", exit="a"), Command("block", host="a.com")])
    for key in (b"command/exit/a", b"command/clear/a.com"):
        record = control.decode(key, None)
        assert isinstance(record, Command)
        commands.take(record)
    assert [one.action for one in commands.in_force] == ["block"]
