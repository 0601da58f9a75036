"""What a `run` checks: that its workers can do the job, how they fare, and at the end that the log is whole.

A healthy log is not read. Three signs of a loss are looked at: the log's ends, the order in which dones name pages, and
an unclean end of the broker. After such a sign the whole log is checked, and missing pages are fetched or parsed again.
This repeats as long as each check finds fewer losses. The remaining losses are named, and the run ends with an error.
"""

from math import inf
from typing import TYPE_CHECKING

import msgspec

from crawlog.commands.verify import findings
from crawlog.streams.control import has_workers, write_finished
from crawlog.streams.errors import Misconfigured
from crawlog.streams.jobs import traits
from crawlog.streams.log import Topics
from crawlog.streams.recovery import Check, cuts_against, pages_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from crawlog.processes.supervisor import Supervisor
    from crawlog.schemas.control import Finished, JobCopy
    from crawlog.schemas.progress import JobCounts
    from crawlog.streams.jobs import FleetReports
    from crawlog.streams.settings import Settings


REPARSE = (
    "the spider has changed since its pages were parsed:"
    " `crawlog jobs update {} --parse-again`, then this command again"
)


def allow_spider(settings: "Settings", path: str) -> None:
    """Allows workers of this data folder to run the code of a command's spider, now and later."""
    from crawlog.streams.spiders import allow, code_of

    if (code := code_of(path)) is not None:
        allow(settings.run.data, code)


def check_spider(supervisor: "Supervisor", copy: "JobCopy") -> None:
    """Refuses a job whose spider the workers would not run: each of its pages would become a dead letter.

    Raises: Misconfigured: the job's record names a spider file that is not allowed here.
    """
    from crawlog.streams.spiders import code_of, trust_of

    code = code_of(copy.spec.spider)
    if code is not None and (refusal := trust_of(supervisor.settings).refusal(code)):
        raise Misconfigured(f"the spider of job {copy.job} is {copy.spec.spider}, and {refusal}")


def check_outputs(supervisor: "Supervisor", copy: "JobCopy", end: "Finished | None") -> None:
    """Refuses a job that would never finish: it waits for outputs that no sink worker of a fleet writes.

    Raises: Misconfigured: the job goes on, and the log has no such worker. A run on a local engine has none.
    """
    if end is not None or not traits(copy.spec.state).outputs:
        return
    if copy.spec.flow is not None and copy.spec.flow.feeds:
        raise Misconfigured(
            f"job {copy.job} is fed by a fleet's sink worker ({', '.join(copy.spec.flow.feeds)}).\n"
            "`crawlog up` goes on with the job."
        )
    outputs = [output.name for output in copy.spec.outputs if output.required]
    if outputs and (supervisor.engine is not None or not has_workers(supervisor.settings, "sink")):
        raise Misconfigured(
            f"job {copy.job} has outputs that a fleet's sink worker writes, and none runs: {', '.join(outputs)}.\n"
            "`crawlog up` goes on with the job. A run with another --job has its own rows."
        )


def note_new_spider(supervisor: "Supervisor", end: "Finished | None", digest: str) -> None:
    """Tells how to parse the pages again if the spider's file has changed since the job ended.

    After a replay it records the new file instead. If one of the two files is unknown, it does nothing.

    Args:
        digest: Hash of the file now.
    """
    if end is None or not end.spider or not digest or end.spider == digest:
        return
    if supervisor.picture.parsed(end.job):
        amend_end(supervisor, end, spider=digest)
    else:
        supervisor.report(REPARSE.format(end.job))


def amend_end(supervisor: "Supervisor", end: "Finished", **known: int | str) -> None:
    """Adds to the end of the job what this run alone knows: the hash of its spider's file, and its dead letters."""
    amended = msgspec.structs.replace(end, **known)
    if amended != end:
        write_finished(supervisor.producer, Topics(supervisor.settings.kafka.prefix), amended)


class LossCheck:
    """The log of one run's job.

    Attributes:
        missing: Lines about losses that cannot be restored; empty if there are none.
        was_damaged: Whether the log was checked. A sink may then have skipped records that replaced lost ones.
    """

    def __init__(self, supervisor: "Supervisor", say: "Callable[[str], None]") -> None:
        self.missing: tuple[str, ...] = ()
        self.was_damaged = False
        self._supervisor = supervisor
        self._say = say
        self._before: float = inf
        self._has_founds = False

    def holds(self, end: "Finished | None", counts: "JobCounts", was_back: int = 0) -> bool:
        """Whether the run may end; False if it must wait until losses are restored.

        Args:
            end: How the job ended; None for one that is left open.
            counts: Of the job, now.
            was_back: Its `JobCounts.page_back` when it was finished before.
        """
        if not self._may_lack(counts.page_back > was_back):
            return True
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

    def _may_lack(self, is_back: bool) -> bool:
        names = Topics(self._supervisor.settings.kafka.prefix)
        picture = self._supervisor.picture
        known = list(pages_named(names, picture.of("fetch")))
        is_cut = bool(cuts_against(known, {names.pages: self._supervisor.ends("parse")}))
        return is_cut or is_back or self._supervisor.is_unchecked


class Trouble:
    """Reports why no row is written (FILE may be on another disk than the log), and why a state begins again."""

    def __init__(self, picture: "FleetReports", say: "Callable[[str], None]") -> None:
        self._picture = picture
        self._say = say
        self._last = ""
        self._notes: set[str] = set()
        self._needs: set[str] = set()

    def tell(self) -> None:
        """Reports changes since the last call."""
        trouble = self._picture.trouble("sink")
        if trouble != self._last:
            self._say(f"{trouble}; rows wait, and go on by themselves" if trouble else "rows are written again")
            self._last = trouble
        for note in sorted(self._picture.notes() - self._notes):
            self._say(note)
            self._notes.add(note)

    def tell_needs(self, needs: "Mapping[str, int]") -> None:
        """Reports settings of workers that the job's URLs wait for: this command's workers lack them, too."""
        for setting in sorted(needs.keys() - self._needs):
            self._needs.add(setting)
            self._say(f"URLs wait for a worker with {setting}: end this command, and give it -s {setting}")
