"""Which jobs' spiders may give first requests, and whose `start` has ended, as crawl.control tells it."""

from collections.abc import Mapping

from crawlog.schemas.control import Command, Control, JobCopy, StartEnded

STARTABLE = ("running", "finished")
"""States of jobs whose `start` may give requests: after an error, or with another spider, it begins again."""


def start_ended(said: Mapping[bytes, Control], copy: JobCopy, digest: str = "") -> StartEnded | None:
    """The note that the `start` of a job has ended; None if it begins, or begins again.

    Args:
        said: The records of crawl.control.
        digest: Of the spider's code; empty if it is not known.
    """
    ended = said.get(f"start/{copy.job}".encode())
    if not isinstance(ended, StartEnded) or not ended.is_of(copy) or ended.error:
        return None
    return None if digest and ended.spider and digest != ended.spider else ended


def startable(said: Mapping[bytes, Control]) -> dict[tuple[str, int], JobCopy]:
    """The jobs whose spiders may give requests, by name and epoch: no command stops them.

    A finished job runs again when its spider gives it a new URL.

    Args:
        said: The records of crawl.control.
    """
    from crawlog.streams.frontier import Commands

    commands = Commands(entry for entry in said.values() if isinstance(entry, Command))
    return {
        (copy.job, copy.epoch): copy
        for copy in said.values()
        if isinstance(copy, JobCopy)
        and copy.spec.starts
        and copy.spec.state in STARTABLE
        and not commands.of_job(copy.job).stopped
    }
