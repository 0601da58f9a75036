"""Detects records that the log has lost, and restores them before a worker writes."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawlog.streams import engine as local
    from crawlog.streams.log import Check, CutPartition
    from crawlog.streams.settings import Settings


class LogCare:
    """The log of one supervisor.

    Attributes:
        cuts: Partitions that have lost records; emptied once the whole log has been checked.
        lost_founds: Every partition of crawl.urls that has lost records; seeds may be lost with them. Never emptied.
    """

    def __init__(self, settings: "Settings", report: Callable[[str], None]) -> None:
        from crawlog.streams.log import Marks

        self.cuts: list[CutPartition] = []
        self.lost_founds: list[CutPartition] = []
        self._settings = settings
        self._report = report
        self._marks = Marks(settings, settings.kafka.partitions)
        self._said: set[str] = set()
        self._owed: list[CutPartition] = []  # found, and not restored yet

    def moved(self, settings: "Settings") -> None:
        """Takes the log's new address."""
        from crawlog.streams.log import Marks

        self._settings = settings
        self._marks = Marks(settings, settings.kafka.partitions)

    def due(self) -> "Sequence[CutPartition]":
        """Partitions that have lost records by their leader epochs; empty if the last look was just now."""
        return self._marks.due()

    def lost(self) -> "list[CutPartition]":
        """Partitions that have lost records, by ends or leader epochs: since the last look, or not restored yet."""
        return [*self._owed, *self._cuts(), *self._marks.look()]

    def _cuts(self) -> "list[CutPartition]":
        from crawlog.streams.log import Topics, find_cuts

        return find_cuts(self._settings, Topics(self._settings.kafka.prefix), self._say_once)

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._report(line)

    def founds(self, cuts: "Iterable[CutPartition]") -> "list[CutPartition]":
        """The partitions of crawl.urls among these."""
        from crawlog.streams.log import Topics

        return [one for one in cuts if one.topic == Topics(self._settings.kafka.prefix).urls]

    def make_again(self, engine: "local.Engine | None", found: "Sequence[CutPartition]" = ()) -> None:
        """Restores the records that the log has lost. No worker may write meanwhile.

        Args:
            engine: The local broker; None on a cluster of the user's.
            found: Losses that are known already.

        Raises: EngineError: the log does not answer; `lost` gives the losses again.
        """
        from crawlog.streams.log import power_cut

        self._owed = list(dict.fromkeys([*self._owed, *found]))
        if engine and engine.lost_power:
            power_cut.after_power_cut(self._settings, self._report)
            engine.mended()
        self._owed = lost = list(dict.fromkeys(self.lost()))
        if lost:
            power_cut.after_cuts(self._settings, self._report, lost)
            self.cuts += lost
            self.lost_founds += self.founds(lost)
            self._marks.mended()
            self._owed = []
        if engine and (cut_off := engine.cut_off):
            names = ", ".join(file.name for file in cut_off)
            power_cut.offer_again(self._settings, self._report, names, engine.founds_cut_off())
            engine.offered()

    def mend(self, check: "Check", *, founds: bool) -> None:
        """Restores the records that a check of the log has found missing.

        Args:
            founds: Whether founds are lost, so that all pages are parsed again.
        """
        from crawlog.streams.log import power_cut

        power_cut.after_cuts(self._settings, self._report, self._cuts(), check, founds=founds)
