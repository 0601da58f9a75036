"""Checks, when a job is finished, whether the log has lost records, and has them restored.

A healthy log is not read. Three signs of a loss are looked at: the log's ends, the order in which dones name pages, and
an unclean end of the broker. After such a sign the whole log is checked, and missing pages are fetched or parsed again.
This repeats as long as each check finds fewer losses. The remaining losses are named, and the run ends with an error.
"""

from math import inf
from typing import TYPE_CHECKING

from crawlog.commands.verify import findings

if TYPE_CHECKING:
    from collections.abc import Callable

    from crawlog.processes.supervisor import Supervisor
    from crawlog.schemas.control import Finished
    from crawlog.schemas.progress import JobCounts


class LossCheck:
    """The log of one run's job.

    Args:
        was_back: The job's `JobCounts.page_back` when it was finished before.

    Attributes:
        missing: Lines about losses that cannot be restored; empty if there are none.
        was_damaged: Whether the log was checked. A sink may then have skipped records that replaced lost ones.
    """

    def __init__(self, supervisor: "Supervisor", say: "Callable[[str], None]", was_back: int = 0) -> None:
        self.missing: tuple[str, ...] = ()
        self.was_damaged = False
        self._supervisor = supervisor
        self._say = say
        self._was_back = was_back
        self._before: float = inf
        self._has_founds = False

    def holds(self, end: "Finished | None", counts: "JobCounts") -> bool:
        """Whether the run may end; False if it must wait until losses are restored.

        Args:
            end: How the job ended; None for one that is left open.
            counts: Of the job, now.
        """
        if not self._may_lack(counts):
            return True
        from crawlog.streams.recovery import Check

        self._say("Apache Kafka did not end by itself, or its log was damaged: the whole log is checked")
        ends = end.pages if end is not None else self._supervisor.ends("parse")
        check = Check(self._supervisor.settings, dict(enumerate(ends)))
        self.was_damaged = True
        founds = self._lacks_founds()
        if not check.lacking and not founds:
            self._supervisor.checked()
            return True
        if check.lacking >= self._before and not founds:
            self.missing = tuple(findings(check.findings(), check.missing))
            return True
        self._supervisor.mend(check, founds=founds)
        self._before = check.lacking  # only now: what was not restored is to be tried again
        self._has_founds = True
        return False

    def _lacks_founds(self) -> bool:
        """Whether a worker found crawl.urls cut, and the pages were not parsed again for that."""
        stages = {stage for stage, _ in self._supervisor.picture.cuts}
        return "fetch" in stages and not self._has_founds and not self._supervisor.has_lost_founds

    def _may_lack(self, counts: "JobCounts") -> bool:
        from crawlog.streams.log import Topics
        from crawlog.streams.recovery import cuts_against, pages_named

        names = Topics(self._supervisor.settings.kafka.prefix)
        picture = self._supervisor.picture
        known = list(pages_named(names, picture.of("fetch")))
        is_cut = bool(cuts_against(known, {names.pages: self._supervisor.ends("parse")}))
        is_back = counts.page_back > self._was_back
        return is_cut or is_back or self._supervisor.is_unchecked
