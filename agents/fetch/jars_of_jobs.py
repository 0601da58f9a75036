"""The rows of cookie jars in the states of this worker's partitions, and what dones say of jars."""

from typing import TYPE_CHECKING

import msgspec

from crawlog.agents.client import StoredJar

if TYPE_CHECKING:
    from crawlog.agents.client import CookieJars
    from crawlog.agents.frontier import Stage
    from crawlog.schemas.urls import Result
    from crawlog.streams.frontier import Task


class JarsOfJobs:
    """Finds the row of a jar in a live partition; no other partition's jars are read."""

    def __init__(self, stage: "Stage") -> None:
        self._stage = stage

    def __call__(self, job: str, url: str, name: str) -> StoredJar | None:
        """As `crawlog.agents.client.cookie_jars.RowOf`."""
        if not self._stage.live:
            return None
        place = self._stage.place(url)
        partition = self._stage.live.get(place.partition)
        known = partition.fold.jobs.get(job) if partition is not None else None
        if partition is None or known is None:
            return None
        rows = partition.fold.dones.jars
        return StoredJar(
            rows.mark,
            known.epoch,
            lambda: rows.read(known.number, place.domain_hash, name),
            self._stage.ownerships.get(place.partition),
        )


def with_cookies(task: "Task", result: "Result", jars: "CookieJars") -> "Result":
    """A done with the cookies that changed in its jar; without any where the job keeps none."""
    request = task.request
    if request is not None and not request.keeps_cookies:
        return result
    name = request.jar if request is not None else ""
    changed = jars.changes(task.job.name, task.row.url, name)
    if not changed or not task.manner.rules.cookies or task.epoch != task.job.epoch:
        return result
    return msgspec.structs.replace(result, jar=name, cookies=changed)
