"""Keys that sign deployed code, and signatures that count."""

from pathlib import Path

import msgspec
import pytest

from crawlog.schemas.code import CodeManifest, encode
from crawlog.streams.code import folder_key, is_intact, make_key, read_key, refusal, trusted_keys
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings import Settings

MANIFEST = CodeManifest("cluster", "project", "1", "a" * 64, 10, 1.0, ("one",))


def test_a_key_is_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    """Never overwritten; refused where others can read it."""
    path = tmp_path / "a.key"
    made = make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path).public == made.public
    assert [one.name for one in tmp_path.iterdir()] == ["a.key"]
    with pytest.raises(Misconfigured, match="no key is overwritten"):
        make_key(path)
    path.chmod(0o640)
    with pytest.raises(Misconfigured, match="others can read it"):
        read_key(path)
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(Misconfigured, match="no private key"):
        read_key(path)


def test_a_data_folder_has_one_key_of_its_own_that_is_trusted_there(tmp_path: Path) -> None:
    """Made at its first use, beside those of `security.trusted_keys`."""
    base = Settings()
    settings = base.model_copy(update={"run": base.run.model_copy(update={"data": tmp_path})})
    assert trusted_keys(settings) == frozenset()
    own = folder_key(tmp_path)
    assert folder_key(tmp_path).public == own.public
    assert not refusal(own.sign(MANIFEST), trusted_keys(settings))
    other = make_key(tmp_path / "other.key")
    assert "not in security.trusted_keys" in refusal(other.sign(MANIFEST), trusted_keys(settings))
    security = settings.security.model_copy(update={"trusted_keys": (other.public,)})
    settings = settings.model_copy(update={"security": security})
    assert not refusal(other.sign(MANIFEST), trusted_keys(settings))
    wrong = settings.model_copy(update={"security": security.model_copy(update={"trusted_keys": ("abc",)})})
    with pytest.raises(Misconfigured, match="no public key"):
        trusted_keys(wrong)


def test_each_byte_of_a_manifest_is_signed(tmp_path: Path) -> None:
    """A change of any field, of the signature or of the key is seen."""
    own = make_key(tmp_path / "own.key")
    signed, other = own.sign(MANIFEST), make_key(tmp_path / "other.key")
    assert is_intact(signed)
    changes = {"cluster": "x", "project": "x", "version": "2", "sha256": "b" * 64, "size": 11, "at": 2.0, "by": "x"}
    for field, value in changes.items():
        text = encode(msgspec.structs.replace(MANIFEST, **{field: value})).decode()
        assert not is_intact(msgspec.structs.replace(signed, manifest=text)), field
    assert not is_intact(msgspec.structs.replace(signed, key=other.public))
    for broken in ("", "AAAA", "ü", signed.signature[:-4]):
        assert not is_intact(msgspec.structs.replace(signed, signature=broken))
        assert not is_intact(msgspec.structs.replace(signed, key=broken))


@pytest.mark.parametrize("field", ["project", "version", "sha256"])
@pytest.mark.parametrize("value", ["../x", "a/b", "a\n", "", "x" * 129, ".hidden"])
def test_names_in_a_manifest_are_plain(field: str, value: str) -> None:
    """They stand in keys and folders."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(msgspec.structs.asdict(MANIFEST) | {field: value}, CodeManifest)
