"""How a run ended, as a value: the command line prints it, `crawlog.crawl` returns it."""

from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.progress import JobCounts, JobRemarks
from crawlog.streams.errors import Misconfigured
from crawlog.streams.jobs import PARTIAL_ENDS, Commands, how_ended

if TYPE_CHECKING:
    from crawlog.streams.dead_letters import LetterTally


# Ends of a run that leave rows out, so that FILE is not made.
UNFINISHED = frozenset({"interrupted", "detached", "blocked", "begun_again"}) | PARTIAL_ENDS


class Summary(msgspec.Struct):
    """How a run ended.

    Attributes:
        reason: finished, already_finished, max_pages, interrupted, cancelled, deleted, begun_again (by another
            command), blocked, stopped, closed or detached (a fleet goes on).
        seed: One of the URLs given to the run, for hints; empty if none were given.
        blocked: The host that a command blocks; HOST if there are several.
        known: How the job had ended, if reason is already_finished: finished, max_pages or closed.
        closed: Reason with which the spider closed the job; empty if it did not.
        start_error: The error with which the spider's `start` ended, one line; empty without one.
        start_items: Items that `start` gave.
        stats: Scrapy's stats of the job, by name.
        signal: The signal that ended the run; 0 if none did.
        resumed: Whether the log knew the job before.
        counts: Counts of the job since it began, over all commands that worked on it.
        pages, parsed, dead: Counts of this run: pages fetched, pages parsed, records and items not handled.
        failed_items: Those of them that are items, which pipelines failed.
        commonest_error, commonest_count, commonest_place: The error that most of these failed with, how many, and where
            the user's code raised it first.
        is_clean: Whether no earlier run of the job can have left dead letters.
        rows: The number of rows in `output`; None if it was not made.
        partial: The file with the rows so far, if `output` was not made.
        has_others: Whether other commands on the cluster have fetch workers too; set only after an interrupt.
        remarks: What the parse workers that live say of the pages.
        missing: Lines about losses of the log that cannot be restored, with advice.
    """

    job: str
    seed: str = ""
    blocked: str = "HOST"
    reason: str = "interrupted"
    known: str = ""
    closed: str = ""
    start_error: str = ""
    start_items: int = 0
    stats: dict[str, float] = {}
    signal: int = 0
    epoch: int = 0
    resumed: bool = False
    counts: JobCounts | None = None
    pages: int = 0
    parsed: int = 0
    dead: int = 0
    failed_items: int = 0
    commonest_error: str | None = None
    commonest_count: int = 0
    commonest_place: str = ""
    is_clean: bool = True
    took_s: float = 0.0
    output: str | None = None
    rows: int | None = None
    partial: str | None = None
    has_others: bool = False
    remarks: JobRemarks = JobRemarks()
    missing: tuple[str, ...] = ()

    @property
    def is_unfinished(self) -> bool:
        """Whether rows are left out: no FILE is made."""
        return self.reason in UNFINISHED or bool(self.missing)

    @property
    def is_gone(self) -> bool:
        """Whether the job of the command is no more: no FILE is made."""
        return self.reason in ("cancelled", "deleted", "begun_again")

    def tell_losses(self, tally: "LetterTally") -> None:
        """Notes this run's dead letters."""
        self.dead, self.failed_items = tally.count, tally.items
        if (commonest := tally.commonest) is not None:
            self.commonest_error, self.commonest_count, self.commonest_place = commonest

    def tell_end(self, state: str, reason: str) -> None:
        """Notes how the job has ended, by the state and the reason of its record.

        Raises: Misconfigured: the job failed.
        """
        if state == "failed":
            raise Misconfigured(f"job {self.job} failed: {reason}; `crawlog jobs logs {self.job}` tells more")
        self.reason, self.closed = how_ended(state, reason)

    def tell_open(self, orders: "Commands", *, is_held: bool) -> None:
        """Notes why nothing is left to do of a job that has not ended, by the commands in force.

        Args:
            is_held: Whether it has URLs for which nobody waits.
        """
        if orders.of_job(self.job).stopped:
            self.tell_end("stopped", orders.reason(self.job))
        elif is_held:
            hosts = [one.host for one in orders.in_force if one.action == "block"]
            self.reason, self.blocked = "blocked", hosts[0] if len(hosts) == 1 else "HOST"
        else:
            self.reason = "finished"

    def tell_known(self) -> None:
        """Notes that an earlier run has told of the end, unless the job is cancelled."""
        if self.reason != "cancelled":
            self.known, self.reason = self.reason, "already_finished"
