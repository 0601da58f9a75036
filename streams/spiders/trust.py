"""Decides which files workers may run as spiders: files that the operator named and that no other user may change.

    crawlog run --spider FILE ──► <data>/run/spiders.json ──┐
    security.spider_folders ────────────────────────────────┴──► may a worker run the file that a job's record names?

Job records come from Kafka, and not every writer there may run code here. The check uses the real path, after all
links. It covers only the file and its folder. Folders above may belong to other users, for two reasons: a user who
replaces one cannot put a file of our owner there, and a link there leads to another path, which was not named.
"""

import fcntl
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.streams import files

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


class Trust(NamedTuple):
    """The files that a worker may run; by default none.

    Attributes:
        folders: All files below them may be run.
        named: The file that lists the spiders named by commands on this data folder.
    """

    folders: tuple[Path, ...] = ()
    named: Path | None = None

    def refusal(self, path: Path) -> str:
        """Why a file that a job's record names may not be run; empty if it may."""
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
        """The files that commands named, and why their list is ignored; empty if it is not."""
        if self.named is None:
            return set(), ""
        try:
            return set(msgspec.json.decode(files.read_trusted(self.named), type=list[str])), ""
        except FileNotFoundError:
            return set(), ""
        except (OSError, msgspec.MsgspecError) as error:
            return set(), f" ({self.named} is not used: {error})"


def code_of(named: str) -> Path | None:
    """The file or folder whose code runs for a spider's name in a job's record; None if there is none.

    `FILE.py[:Class]` is a file, `FOLDER:NAME` and `FOLDER:pkg.module:Class` are a folder. `pkg.module:Class` is the
    file of the installed package, because an import runs code. It is not imported here.
    """
    file, colon, _ = named.rpartition(".py:")
    if colon or named.endswith(".py"):
        return Path(f"{file}.py" if colon else named)
    folder = named.partition(":")[0]
    return Path(folder) if folder.startswith("/") else _installed(folder.partition(".")[0])


def _installed(package: str) -> Path | None:
    """The file of an installed package, without importing it: a top-level name imports nothing."""
    try:
        spec = find_spec(package)  # also by the finder of an editable install
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None


def trust_of(settings: "Settings") -> Trust:
    return Trust(tuple(map(Path, settings.security.spider_folders)), _list(settings.run.data))


def allow(data: Path, file: Path) -> None:
    """Add a file that the operator's command named. Only the operator's own commands may call this, several at once."""
    path = _list(data)
    with files.append(path.with_name("spiders.lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = Trust(named=path)._known()[0]  # noqa: SLF001  # empty for a list that others may change: it is replaced
        files.write(path, msgspec.json.encode(sorted({*known, str(files.real_path(file))})).decode() + "\n")


def _list(data: Path) -> Path:
    return data.absolute() / "run" / "spiders.json"
