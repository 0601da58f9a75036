"""Which files workers may run as spiders: those that the operator named, and that nobody else may change.

    crawlog run --spider FILE ──► <data>/run/spiders.json ──┐
    security.spider_folders ────────────────────────────────┴──► may a worker run the file that a job's record names?

Job records come from Kafka, whose writers are not all trusted to run code here. What counts is where a file really
lies: links are followed first. Only the file and its folder are looked at. Folders above may belong to others: who
replaces one of them has no file of our owner to put there, and a link leads to another path, which was not named.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.streams import files

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


class Trust(NamedTuple):
    """What a worker may run; by default nothing.

    Attributes:
        folders: Files below them may be run.
        named: The list of files that commands on this data folder named.
    """

    folders: tuple[Path, ...] = ()
    named: Path | None = None

    def refusal(self, path: Path) -> str:
        """Why a file that a job's record names may not be run; empty where it may."""
        try:
            found = files.real_path(path)
        except (ValueError, RuntimeError) as error:  # a NUL; `~nobody`
            return f"there is no such path: {error}"
        if any(found.is_relative_to(files.real_path(folder)) for folder in self.folders):
            return ""
        known, trouble = self._known()
        if str(found) in known:
            return ""
        return (
            f"workers may not run it: it is in none of security.spider_folders, and no `crawlog run --spider` named it "
            f"on this data folder{trouble}. To allow it, run that command once, or set security.spider_folders and "
            "start the workers again; then `crawlog dead redrive --all --reason spider_folders --execute`"
        )

    def _known(self) -> tuple[set[str], str]:
        """The files that commands named, and why their list does not count if it does not."""
        if self.named is None:
            return set(), ""
        try:
            return set(msgspec.json.decode(files.read_trusted(self.named), type=list[str])), ""
        except FileNotFoundError:
            return set(), ""
        except (OSError, msgspec.MsgspecError) as error:
            return set(), f" ({self.named} is not used: {error})"


def trust_of(settings: "Settings") -> Trust:
    """What the workers of a data folder may run."""
    return Trust(tuple(map(Path, settings.security.spider_folders)), _list(settings.run.data))


def allow(data: Path, file: Path) -> None:
    """Notes a file that the operator's command named; to be called by the holder of the data folder only."""
    path = _list(data)
    known = Trust(named=path)._known()[0]  # noqa: SLF001  # a list that others may change is replaced
    files.write(path, msgspec.json.encode(sorted({*known, str(files.real_path(file))})).decode() + "\n")


def _list(data: Path) -> Path:
    return data.absolute() / "run" / "spiders.json"
