"""Notices what the log has lost, and makes it again before a worker writes."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawlog.streams import engine as local
    from crawlog.streams.log import Check, CutPartition
    from crawlog.streams.settings import Settings


class LogCare:
    """The log of one supervisor.

    Attributes:
        cuts: Partitions that were found to have lost records, until the log has been checked.
        lost_founds: Those of crawl.urls that were ever found so: with each, seeds may be gone.
    """

    def __init__(self, settings: "Settings", report: Callable[[str], None]) -> None:
        from crawlog.streams.log import Marks

        self.cuts: list[CutPartition] = []
        self.lost_founds: list[CutPartition] = []
        self._settings = settings
        self._report = report
        self._marks = Marks(settings, settings.kafka.partitions)
        self._said: set[str] = set()

    def moved(self, settings: "Settings") -> None:
        """The log is at another address."""
        from crawlog.streams.log import Marks

        self._settings = settings
        self._marks = Marks(settings, settings.kafka.partitions)

    def due(self) -> "Sequence[CutPartition]":
        """Partitions whose leaders' epochs say that they have lost records, where it is time to look."""
        return self._marks.due()

    def lost(self) -> "list[CutPartition]":
        """The partitions that have lost records since anybody looked, by their ends or by their leaders' epochs."""
        return [*self._cuts(), *self._marks.look()]

    def _cuts(self) -> "list[CutPartition]":
        from crawlog.streams.log import Topics, find_cuts

        return find_cuts(self._settings, Topics(self._settings.kafka.prefix), self._say_once)

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._report(line)

    def founds(self, cuts: "Iterable[CutPartition]") -> "list[CutPartition]":
        """Those of these partitions that are of crawl.urls."""
        from crawlog.streams.log import Topics

        return [one for one in cuts if one.topic == Topics(self._settings.kafka.prefix).urls]

    def make_again(self, engine: "local.Engine | None", found: "Sequence[CutPartition]" = ()) -> None:
        """Makes again what the log has lost. No worker may write meanwhile.

        Args:
            engine: The folder's own broker; None where the log is in a cluster of the user's.
            found: What is known already.
        """
        from crawlog.streams.log import power_cut

        if engine and engine.lost_power:
            power_cut.after_power_cut(self._settings, self._report)
            engine.mended()
        found = list(dict.fromkeys([*found, *self.lost()]))
        if found:
            self.cuts += found
            self.lost_founds += self.founds(found)
            power_cut.after_cuts(self._settings, self._report, found)
            self._marks.mended()
        if engine and (cut_off := engine.cut_off) is not None:
            power_cut.offer_again(self._settings, self._report, cut_off.name, engine.founds_cut_off())
            engine.offered()

    def mend(self, check: "Check", *, founds: bool) -> None:
        """Makes again what a check of the log has found to be missing.

        Args:
            founds: All pages are parsed again, since founds are gone.
        """
        from crawlog.streams.log import power_cut

        power_cut.after_cuts(self._settings, self._report, self._cuts(), check, founds=founds)
