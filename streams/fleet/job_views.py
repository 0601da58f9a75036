"""The views of jobs that are still true: of a thousand jobs few change from one look to the next. Pure.

report, record of crawl.control ─► which views are no longer true? ─► dropped, made anew at the next look
"""

from collections.abc import Callable, Iterable

from crawlog.schemas.progress import Progress

from .paces import EVERY_S, STILL
from .views import JobView


class JobViews:
    """Views by name of the job; that of a job which goes on is true for `EVERY_S`, as its pace changes by itself."""

    def __init__(self) -> None:
        self._made_of: tuple[object, ...] = ()
        self._views: dict[str, tuple[float, JobView]] = {}

    def clear(self) -> None:
        self._views.clear()

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._views.pop(name, None)

    def of(
        self, name: str, made_of: tuple[object, ...], now: float, make: Callable[[str], JobView | None]
    ) -> JobView | None:
        """The view of a job, which is made if none is true.

        Args:
            made_of: What all views are made of; no view is true for others.
            now: UTC epoch seconds.
        """
        if made_of != self._made_of:
            self._views, self._made_of = {}, made_of
        until, known = self._views.get(name, (-1.0, None))
        if until >= now:
            return known
        if (view := make(name)) is not None:
            self._views[name] = float("inf") if view.pace == STILL else now + EVERY_S, view
        return view


def is_other(was: Progress | None, now: Progress | None) -> bool:
    """Whether a report of a partition says more than the one before: it is of another process, or names all jobs."""
    if was is None or now is None:
        return was is not now
    return (was.worker, was.pid, was.is_partial) != (now.worker, now.pid, now.is_partial)


def changed_jobs(was: Progress | None, now: Progress) -> set[str]:
    """The jobs whose views a report changes otherwise than by counts.

    Their outputs have changed, or a report of all jobs no longer names them.
    """
    changed = {*now.rows, *now.waiting, *now.gone}
    if was is not None:
        changed |= was.waiting.keys()
        if not now.is_partial:
            changed |= was.jobs.keys() - now.jobs.keys()
    return changed
