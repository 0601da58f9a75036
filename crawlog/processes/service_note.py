"""`run/service.json` in the data folder: where the HTTP service listens, and the token of the folder. Mode 600."""

import contextlib
import secrets
from pathlib import Path

import msgspec

from crawlog.streams import files


class ServiceNote(msgspec.Struct, frozen=True):
    """Where the service listens.

    Attributes:
        port: 0 while it has never run.
        pid: Of the process that wrote this.
        token: Of the data folder; it stays the same.
    """

    address: str = ""
    port: int = 0
    pid: int = 0
    token: str = ""

    @property
    def url(self) -> str:
        """Its address for people."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/"


def _file(data: Path) -> Path:
    return data.absolute() / "run" / "service.json"


def service_note(data: Path) -> ServiceNote | None:
    """The note; None if there is none that can be read."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(files.read(_file(data)), type=ServiceNote)
    return None


def own_token(data: Path) -> str:
    """The token of the folder; made at the first start."""
    noted = service_note(data)
    return noted.token if noted and noted.token else secrets.token_urlsafe(32)


def note_service(data: Path, note: ServiceNote) -> None:
    """Writes the note."""
    files.own(_file(data).parent)
    files.write(_file(data), msgspec.json.encode(note).decode())
