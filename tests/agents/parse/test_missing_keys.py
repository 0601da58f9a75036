"""A parse worker names the deployed code that it may not run."""

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from structlog.testing import capture_logs

from crawlog.agents.parse import remarks
from crawlog.agents.parse.remarks import MissingKeys
from crawlog.schemas.code import CodeManifest
from crawlog.streams.code import CodeEntry, SigningKey, folder_key, make_key
from crawlog.streams.settings.settings import Settings

MANIFEST = CodeManifest("c", "shop", "1", "a" * 64, 10, 1.0)


class Deployed:
    """A log of code in memory."""

    entries: ClassVar[list[CodeEntry]] = []

    def __init__(self, _settings: Settings) -> None:
        self.looks = 0

    def look(self) -> None:
        """Read what is new."""
        self.looks += 1


def version(key: SigningKey, offset: int, project: str = "shop") -> CodeEntry:
    """A version, signed."""
    manifest = msgspec.structs.replace(MANIFEST, project=project, version=str(offset))
    return CodeEntry(manifest, key.sign(manifest), offset)


def test_a_worker_without_the_key_says_so_once_and_in_its_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each project the newest version counts; one that is signed by the folder's own key is no trouble."""
    base = Settings()
    settings = base.model_copy(update={"run": base.run.model_copy(update={"data": tmp_path})})
    own, other = folder_key(tmp_path), make_key(tmp_path / "other.key")
    code: Any = Deployed
    monkeypatch.setattr(remarks, "CodeLog", code)
    found = MissingKeys(settings)
    with capture_logs() as logs:
        for entries, named in (
            ([version(own, 1)], ""),
            ([version(own, 1), version(other, 2)], "shop 2"),
            ([version(own, 1), version(other, 2)], "shop 2"),
            ([version(other, 2), version(own, 3)], ""),
            ([version(other, at, f"p{at}") for at in range(5)], "p0 0, p1 1, p2 2 and 2 more"),
        ):
            monkeypatch.setattr(Deployed, "entries", entries)
            found.look()
            assert bool(found.trouble) == bool(named)
            assert f"of {named}: its key" in (found.trouble or "") or not named
    assert [one["code"] for one in logs] == ["shop 2", "p0 0, p1 1, p2 2 and 2 more"]
