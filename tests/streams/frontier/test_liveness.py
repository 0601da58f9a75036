"""What is queued and may go on is handed out in time, with no further change of a job or a command to help it."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.control import Command
from crawlog.streams.fold import rows as r
from crawlog.streams.frontier import schedule, waits
from crawlog.streams.frontier.host import RobotsTask, Task
from crawlog.streams.jobs.commands import Commands
from tests.support.dispatching import PLACES, Rests, World

SIZED_EVERY_S = 10.0
"""Between two looks at the windows, as of a worker."""

COMMANDS = [
    Command(action="pause", job="j"),
    Command(action="pause", job="k"),
    Command(action="pause", host="h0.com"),
    Command(action="block", host="small.com"),
    Command(action="slow", job="j", delay_s=5.0),
]


def may_go_on(world: World) -> int:
    """How many URLs are queued or wait, and may be fetched."""
    world.fold.flush()
    owned, found = world.frontier.owned[0], 0
    for key, value in world.fold.rows.scan(b"g"):
        row = r.read_host_queue(value)
        job, mark = r.unpack_host_queue(key)
        found += row.queued if owned.may_go_on(row.host, mark, world.fold.numbers[job]) else 0
    return found


def find(world: World, draw: random.Random, number: int) -> None:
    """The large job finds links on many hosts, the small one on a shared host or one of its own."""
    job = draw.choice("jjjk")
    hosts = draw.sample([f"h{n}" for n in range(8)], draw.choice([1, 1, 3, 8])) if job == "j" else ["h0", "small"]
    count = draw.choice([1, 1, 6])
    world.find(*(f"http://{host}.com/{job}{number}-{n}" for host in hosts for n in range(count)), job=job)


def end(world: World, draw: random.Random, task: Task | RobotsTask) -> None:
    """A request ends."""
    pick = draw.random()
    if pick < 0.25 and isinstance(task, Task):
        world.retry(task, draw.choice([0.5, 5, 20]), draw.choice([0, 0, 9]))
    elif pick < 0.5 and isinstance(task, Task):
        world.refused(task)
    else:
        draw.choice([world.fetched, world.fetched, world.aborted])(task)


def disturb(world: World, draw: random.Random, revs: Counter[str]) -> None:
    """A job changes, a command comes, a page loads from a host, the worker restarts or looks at its windows."""
    pick = draw.randrange(6)
    if pick == 0:
        job = draw.choice("jk")
        revs[job] += 1
        world.job(job, revs[job], state=draw.choice(["running", "running", "paused"]))
    elif pick == 1:
        world.frontier.obey(Commands(draw.sample(COMMANDS, draw.choice([0, 0, 1, 2]))))
    elif pick == 2:
        world.frontier.lend(PLACES.of(f"http://h{draw.randrange(8)}.com/"))
    else:
        draw.choice([world.crash, world.rebalance, world.checkpoint, world.frontier.size_windows])()


def live(world: World, draw: random.Random, steps: int) -> None:
    """Two jobs live through much; in the end nothing is in flight."""
    revs = Counter("jk")
    for job in revs:
        world.job(job)
    for number in range(steps):
        pick = draw.random()
        if pick < 0.25:
            find(world, draw, number)
        elif pick < 0.5:
            world.next()
        elif pick < 0.75 and world.in_flight:
            end(world, draw, draw.choice(world.in_flight))
        elif pick < 0.9:
            world.fold_dones()
            world.pass_time(draw.choice([0, 0.1, 1.0, 3.0]))
        else:
            disturb(world, draw, revs)
    for task in list(world.in_flight):
        world.fetched(task)
    world.fold_dones()


def work(world: World, within_s: float) -> None:
    """Do as a worker does for so long."""
    until = world.clock + within_s
    sizes_at = world.clock + SIZED_EVERY_S
    while world.clock < until and may_go_on(world):
        while (task := world.next()) is not None:
            world.fetched(task)
            world.fold_dones()
        at = world.frontier.next_at()
        world.pass_time(max(min(sizes_at if at is None else at, sizes_at) - world.clock, 0.001))
        if world.clock >= sizes_at:
            world.frontier.size_windows()
            sizes_at = world.clock + SIZED_EVERY_S


@given(
    seed=st.integers(0, 1_000_000),
    steps=st.sampled_from([20, 60, 300]),
    rests=st.builds(Rests, st.sampled_from([0.0, 1.0]), st.sampled_from([1, 2])),
    robots=st.booleans(),
    awake=st.sampled_from([1, 2, 4, 20_000]),
    own=st.sampled_from([1, 2, 64]),
    small=st.booleans(),
)
def test_what_may_go_on_is_handed_out_in_time(
    seed: int, steps: int, rests: Rests, robots: bool, awake: int, own: int, small: bool
) -> None:
    """However few hosts fit into memory, and whatever their jobs and the worker went through before."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schedule, "HOSTS_AWAKE", awake)
        patched.setattr(schedule, "OWN_HOSTS", own)
        if small:
            patched.setattr(schedule, "WINDOW", 4)
            patched.setattr(waits, "WAITING_IN_MEMORY", 3)
        world = World(rests, robots)
        world.frontier.size_windows()
        live(world, random.Random(seed), steps)
        work(world, 60 + 12 * may_go_on(world))
        assert not may_go_on(world)
