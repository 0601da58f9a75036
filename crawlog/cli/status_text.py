"""The status of a data folder: as text, and as JSON."""

import json

from msgspec import to_builtins

from crawlog.commands.up import COUNTS, Status
from crawlog.outcome import counted
from crawlog.streams.control import by_rule, needed

from .control_text import described
from .fleet_text import worker_lines

RARE = ("paused", "held")
"""Counts that are left out if they are 0."""


def as_json(found: Status) -> str:
    """One object on one line."""
    held = found.holder._asdict() if found.holder else None
    commands = [to_builtins(command) for command in found.commands]
    told = {"data": str(found.data), "bootstrap": found.bootstrap or None, "engine": found.engine}
    fleet = to_builtins(found.fleet) if found.fleet else {}
    of_fleet = {name: fleet.get(name, []) for name in ("workers", "stages", "hosts")} | {"dead": fleet.get("dead", 0)}
    return json.dumps(told | {"holder": held, "jobs": found.jobs, "commands": commands} | of_fleet)


def lines(found: Status) -> list[str]:
    """The status as text."""
    held = found.holder
    foreign = "not started by crawlog" if found.bootstrap else "not running"
    broker = f"pid {found.engine}" if found.engine else foreign
    lines = [f"data     {found.data}", f"kafka    {found.bootstrap or '-'} ({broker})"]
    lines.append(f"held by  crawlog {held.what} (pid {held.pid})" if held else "held by  nobody")
    lines += [f"worker   {name} (pid {pid})" for name, pid in _silent(found).items()]
    lines += _fleet(found)
    if held and not held.workers:
        lines.append(f"worker   none is alive; their logs: {found.data / 'logs'}")
    for job in found.jobs:
        counts = ", ".join(f"{job[name]} {name}" for name in COUNTS if name in job and (job[name] or name not in RARE))
        if job.get("dropped"):
            counts += f", {sum(job['dropped'].values())} dropped ({by_rule(job['dropped'])})"
        if job.get("needs"):
            counts += f"; {needed(job['needs'])}"
        if not job.get("is_counted", True):
            counts = "its counts are not known: not all partitions have been reported yet"
        elif job.get("reported", 0) < job.get("partitions", 0):
            counts += f" (only {job['reported']} of {job['partitions']} partitions have reported)"
        state = f"{job['state']} ({job['reason']})" if job.get("reason") else job["state"]
        lines.append(f"job      {job['name']}: {state}{', ' + counts if counts else ''}")
    return [*lines, *(f"command  {command}" for command in map(described, found.commands))]


def _silent(found: Status) -> dict[str, int]:
    """The workers of this folder that have not reported, by name: the others stand in the fleet's table."""
    reported = {one.id for one in found.fleet.workers} if found.fleet else set()
    return {name: pid for name, pid in (found.holder.workers if found.holder else {}).items() if name not in reported}


def _fleet(found: Status) -> list[str]:
    """The workers of all machines, and the lag of each stage."""
    if found.fleet is None or not found.fleet.workers:
        return []
    workers = [f"worker   {line}" for line in worker_lines(found.fleet.workers)[1:]]
    lags = [
        f"stage    {one.stage}: {counted(one.workers, 'worker')}, {counted(one.lag, 'record')} behind,"
        f" {one.pages_per_s:.1f} pages/s" + (", paused" if one.is_paused else "")
        for one in found.fleet.stages
    ]
    return [*workers, *lags]
