"""The status of a data folder: as text, and as JSON."""

import json

from msgspec import to_builtins

from crawlog.commands.up import COUNTS, Status
from crawlog.progress.picture import by_rule, needed

from .control_text import described

RARE = ("paused", "held")
"""Counts that are left out if they are 0."""


def as_json(found: Status) -> str:
    """One object on one line."""
    held = found.holder._asdict() if found.holder else None
    commands = [to_builtins(command) for command in found.commands]
    told = {"data": str(found.data), "bootstrap": found.bootstrap or None, "engine": found.engine}
    return json.dumps(told | {"holder": held, "jobs": found.jobs, "commands": commands})


def lines(found: Status) -> list[str]:
    """The status as text."""
    held = found.holder
    foreign = "not started by crawlog" if found.bootstrap else "not running"
    broker = f"pid {found.engine}" if found.engine else foreign
    lines = [f"data     {found.data}", f"kafka    {found.bootstrap or '-'} ({broker})"]
    lines.append(f"held by  crawlog {held.what} (pid {held.pid})" if held else "held by  nobody")
    lines += [f"worker   {name} (pid {pid})" for name, pid in (held.workers if held else {}).items()]
    if held and not held.workers:
        lines.append(f"worker   none is alive; their logs: {found.data / 'logs'}")
    for job in found.jobs:
        counts = ", ".join(f"{job[name]} {name}" for name in COUNTS if name in job and (job[name] or name not in RARE))
        if job.get("dropped"):
            counts += f", {sum(job['dropped'].values())} dropped ({by_rule(job['dropped'])})"
        if job.get("needs"):
            counts += f"; {needed(job['needs'])}"
        if job.get("reported", 0) < job.get("partitions", 0):
            counts += f" (only {job['reported']} of {job['partitions']} partitions have reported)"
        lines.append(f"job      {job['name']}: {job['state']}{', ' + counts if counts else ''}")
    return [*lines, *(f"command  {command}" for command in map(described, found.commands))]
