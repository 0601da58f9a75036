"""The log as a supervisor keeps it whole: detects records that are lost, restores them before a worker writes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from crawlog.streams import files
from crawlog.streams.log import Topics, stage_group

from . import power_cut
from .damage import find_cuts
from .marks import Marks
from .parse_places import accept_skipped, passed_over, ranges_text

if TYPE_CHECKING:
    from pathlib import Path

    from crawlog.streams import engine as local
    from crawlog.streams.settings import Settings

    from .check import Check
    from .damage import CutPartition


# File in the data folder's `run`: `verify --log` has found records missing, and no command has restored them.
MISSING = "missing"


TO_SKIP = "To leave pages out, move the group by `crawlog replay`, or start with --accept-skipped after the move."


def note_missing(data: "Path") -> None:
    """Has the next `run` or `up` of this folder check the whole log, and restore what is missing."""
    files.own(data / "run")
    (data / "run" / MISSING).touch()


class Recovery:
    """The log of one supervisor.

    Attributes:
        is_doubted: Whether a check found records missing; False once the whole log has been checked.
        cuts: Partitions that have lost records; emptied once the whole log has been checked.
        lost_founds: Every partition of crawl.urls that has lost records; seeds may be lost with them. Never emptied.
    """

    def __init__(self, settings: "Settings", report: Callable[[str], None]) -> None:
        self.is_doubted = False
        self.cuts: list[CutPartition] = []
        self.lost_founds: list[CutPartition] = []
        self._settings = settings
        self._report = report
        self._marks = Marks(settings, settings.kafka.partitions)
        self._said: set[str] = set()
        self._owed: list[CutPartition] = []  # found, and not restored yet

    def moved(self, settings: "Settings") -> None:
        """Takes the log's new address."""
        self._settings = settings
        self._marks = Marks(settings, settings.kafka.partitions)

    def due(self) -> "Sequence[CutPartition]":
        """Partitions that have lost records by their leader epochs; empty if the last look was just now."""
        return self._marks.due()

    def lost(self) -> "list[CutPartition]":
        """Partitions that have lost records, by ends or leader epochs: since the last look, or not restored yet."""
        return [*self._owed, *self._cuts(), *self._marks.look()]

    def _cuts(self) -> "list[CutPartition]":
        return find_cuts(self._settings, Topics(self._settings.kafka.prefix), self._say_once)

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._report(line)

    def founds(self, cuts: "Iterable[CutPartition]") -> "list[CutPartition]":
        return [one for one in cuts if one.topic == Topics(self._settings.kafka.prefix).urls]

    def make_again(self, engine: "local.Engine | None", found: "Sequence[CutPartition]" = ()) -> None:
        """Restores the records that the log has lost. No worker may write meanwhile.

        Args:
            engine: The local broker; None on a cluster of the user's.
            found: Losses that are known already.

        Raises: EngineError: the log does not answer; `lost` gives the losses again.
        """
        self._owed = list(dict.fromkeys([*self._owed, *found]))
        if engine and engine.lost_power:
            power_cut.after_power_cut(self._settings, self._report)
            engine.mended()
        self._owed = lost = list(dict.fromkeys(self.lost()))
        noted = self._settings.run.data / "run" / MISSING
        if lost or noted.exists():
            power_cut.after_cuts(self._settings, self._report, lost)
            self.is_doubted = True
            noted.unlink(missing_ok=True)
            self.cuts += lost
            self.lost_founds += self.founds(lost)
            self._marks.mended()
            self._owed = []
        if engine and (cut_off := engine.cut_off):
            names = ", ".join(file.name for file in cut_off)
            power_cut.offer_again(self._settings, self._report, names, engine.founds_cut_off())
            engine.offered()

    def tell_moved(self, *, accepts: bool) -> None:
        """Says which pages another program had parse leave out; parse goes back to them, unless the user accepts that.

        Raises: Misconfigured: the group of parse or of a sink has members.
        """
        skipped = passed_over(self._settings)
        if accepts:
            accept_skipped(self._settings)
        if not skipped:
            return
        names, group = Topics(self._settings.kafka.prefix), stage_group(self._settings, "parse")
        number = sum(map(len, skipped.values()))
        then = "they are left out" if accepts else f"they are parsed now. {TO_SKIP}"
        what = f"{number:,} page{'s' * (number != 1)} of {names.pages} not parsed, {ranges_text(skipped)}"
        self._report(f"{what}: another program moved the group {group} past them; {then}")

    def parse_again(self, back: "Mapping[int, int]") -> None:
        """Moves parse back to offsets, for rows whose items are gone.

        Raises: EngineError: no answer; or parse has members.
        """
        parsed = power_cut.parse_again(self._settings, back)
        self._report(f"rows lack, their items are gone: pages parsed again: {parsed}; those gone too are fetched again")

    def mend(self, check: "Check", *, founds: bool) -> None:
        """Restores the records that a check of the log has found missing.

        Args:
            founds: Whether founds are lost, so that all pages are parsed again.
        """
        power_cut.after_cuts(self._settings, self._report, self._cuts(), check, founds=founds)
