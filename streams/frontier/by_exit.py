"""Which exit a task goes by, and how a host waits for one; delays that count by exit.

    a task is taken ─┬─► `Task.exit`, in flight by it ─► landed: its delay begins
                     └─► none: back in its queue; `Host.exits_until` ─► looked at again

The exits themselves, and which of them rest, are in `streams/exits/`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from crawlog.streams.exits import Exit, Exits, ExitWish, session_name

from .host import IDLE, LATER, Host, HostQueue, Task

if TYPE_CHECKING:
    from .schedule import Schedule

LOOK_S = 5.0  # Longest wait of a host for an exit before it looks again: the exits may have changed


def waits_for_exit(exits: Exits, host: Host, queue: HostQueue, now: float) -> bool:
    """Whether all exits rest, so that a request for robots.txt would be lost; pages look for themselves."""
    if not exits or host.rules_until > now:
        return False
    wait_s = exits.wakes_in_s(host.key, host.partition.policy(queue.job.number).rules, now)
    host.exits_until = now + min(wait_s, LOOK_S)
    return wait_s > 0


def taken(exits: Exits, host: Host, queue: HostQueue, now: float) -> Task | None:
    """The next task of a queue, if an exit serves it now or none is needed; None if there is none."""
    task = host.partition.pop(host, queue)
    if task is not None and exits and not _finds_exit(exits, task, now):
        host.partition.back(task)
        return None
    return task


def _finds_exit(exits: Exits, task: Task, now: float) -> bool:
    """Whether an exit serves a task now; else its host waits for one."""
    request = task.request
    if request is not None and request.proxy:
        return True
    host, rules = task.host, task.policy.rules
    jar, keeps = (request.jar, request.keeps_cookies) if request is not None else ("", True)
    has_session = (rules.cookies and keeps) or host.key in exits.logged_in
    wish = ExitWish(
        session_name(task.job.name, task.domain, jar) if has_session else "",
        exits.refused_by(task.identity),
        may_repeat=True,
        busy=[name for name, flying in host.flying.items() if flying >= host.per_exit > 0],
        delay_s=host.delay_s,
    )
    found = exits.pick(host.key, rules, now, wish)
    if isinstance(found, float):
        host.exits_until = min(found, now + LOOK_S)
        return False
    task.exit = found
    if host.per_exit:
        host.flying[found.name] += 1
    return True


def counts_by_exit(host: Host, way: Exit | None) -> bool:
    """Whether a request delays its exit alone, and not all requests to the host."""
    return way is not None and host.per_exit > 0


def landed(exits: Exits, host: Host, way: Exit | None, now: float, *, is_sent: bool) -> None:
    """A request, perhaps by an exit, has ended."""
    if way is not None and way.name in host.flying:
        host.flying[way.name] -= 1
        host.flying = +host.flying
        if is_sent:
            exits.asked(host.key, way, now)
    if host.exits_until > now and host.where == LATER:  # perhaps it waited for this one
        host.where = IDLE
    host.exits_until = 0.0


def barred(schedule: "Schedule", queued: Callable[[Host], int], most: int) -> dict[int, list[tuple[str, int, float]]]:
    """Hosts that wait because all their exits rest, as in `Frontier.slowest`: so many of each partition."""
    found: dict[int, dict[Host, float]] = {}
    exits, now = schedule.exits, schedule.now()
    for host in (host for _, _, host in schedule.resting if exits and host.where == LATER and host.exits_until > now):
        hosts = found.setdefault(host.partition.fold.partition, {})
        rules = [host.partition.policy(job).rules for job in host.queues]
        if len(hosts) < most and (wait_s := min((exits.wakes_in_s(host.key, one, now) for one in rules), default=0.0)):
            hosts[host] = wait_s
    return {number: [(one.key, queued(one), s) for one, s in of.items()] for number, of in found.items() if of}
