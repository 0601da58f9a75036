"""What the workers cannot do for now, said once each time it changes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from crawlog.progress.picture import Picture


class Trouble:
    """Says why no row is written, and why a state begins again: FILE may be on another disk than the log."""

    def __init__(self, picture: "Picture", say: "Callable[[str], None]") -> None:
        self._picture = picture
        self._say = say
        self._last = ""
        self._notes: set[str] = set()

    def tell(self) -> None:
        """Says what is new."""
        trouble = self._picture.trouble("sink")
        if trouble != self._last:
            self._say(f"{trouble}; rows wait, and go on by themselves" if trouble else "rows are written again")
            self._last = trouble
        for note in sorted(self._picture.notes() - self._notes):
            self._say(note)
            self._notes.add(note)
