"""Reports temporary failures of the workers, once for each change."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from crawlog.streams.jobs import FleetReports


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
