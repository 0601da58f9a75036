"""Archives of projects: made alike each time, without secrets and made files, and refused if they are hostile."""

import io
import os
import stat
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from crawlog.streams.code import opened, pack, unpack
from crawlog.streams.code import unpack as unpacking
from crawlog.streams.code.unpack import MAX_RATIO
from crawlog.streams.errors import Misconfigured

CONFIG = (
    "[settings]\ndefault = tiny.settings\n[deploy]\nurl = http://example.com/\nusername = ann\npassword = secret-word\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A Scrapy project with all that does not belong into an archive."""
    folder = tmp_path / "tiny"
    for name, text in {
        "scrapy.cfg": CONFIG,
        "tiny/__init__.py": "",
        "tiny/settings.py": "SPIDER_MODULES = ['tiny']",
        "tiny/cities.json": "[]",
        ".env": "TOKEN=secret-word",
        "crawlog.toml": "password = 'secret-word'",
        "crawlog.key": "secret-word",
        "tls/server.PEM": "secret-word",
        "tls/client.p12": "secret-word",
        ".git/config": "secret-word",
        "tiny/__pycache__/settings.pyc": "x",
        "venv/pyvenv.cfg": "",
        "venv/lib/big.py": "",
        "data/VERSION": "1",
        "data/kafka/log": "",
        "evil.pth": "import os",
        "build/lib/tiny.py": "",
        "tiny.egg-info/PKG-INFO": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "passwd").symlink_to("/etc/passwd")
    return folder


def test_a_folder_gives_the_same_archive_each_time_and_no_secrets(project: Path) -> None:
    """Passwords of `[deploy]`, keys, hidden files, environments, data folders and links stay at home."""
    first = pack(project)
    for path in project.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert pack(project) == first
    assert first.settings == "tiny.settings"
    with zipfile.ZipFile(io.BytesIO(first.content)) as archive:
        names = archive.namelist()
        texts = b"".join(map(archive.read, names))
    assert names == ["scrapy.cfg", "tiny/__init__.py", "tiny/cities.json", "tiny/settings.py"]
    assert b"secret-word" not in texts
    assert opened(first.content) == first


@pytest.mark.parametrize("kind", ["", "RSA ", "OPENSSH ", "ENCRYPTED "])
def test_a_folder_with_a_private_key_of_any_name_is_refused(project: Path, kind: str) -> None:
    """The message names the file."""
    (project / "tiny" / "id_deploy.txt").write_text(f"-----BEGIN {kind}PRIVATE KEY-----\nsecret-word\n")
    with pytest.raises(Misconfigured, match=r"tiny/id_deploy\.txt is a private key"):
        pack(project)


def test_a_file_that_only_names_private_keys_is_packed(project: Path) -> None:
    """Such as code that reads them, or a certificate."""
    (project / "tiny" / "tls.py").write_text("BEGIN = '-----BEGIN PRIVATE KEY-----'")
    (project / "tiny" / "root.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    with zipfile.ZipFile(io.BytesIO(pack(project).content)) as archive:
        assert {"tiny/tls.py", "tiny/root.crt"} <= set(archive.namelist())


def test_a_file_whose_name_is_not_utf_8_is_named(project: Path) -> None:
    """Names in an archive are UTF-8."""
    Path(os.fsdecode(os.fsencode(project / "tiny") + b"/caf\xe9.txt")).touch()
    with pytest.raises(Misconfigured, match=r"tiny/caf\\xe9\.txt is not UTF-8"):
        pack(project)


def test_a_folder_without_code_is_no_project(tmp_path: Path) -> None:
    """Such as a home."""
    with pytest.raises(Misconfigured, match="no Python file"):
        pack(tmp_path)


def zipped(*entries: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    """An archive of these entries, as they are."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return out.getvalue()


def link(name: str, to: bytes) -> bytes:
    """An archive with a link."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zipped((entry, to))


def truncated(content: bytes) -> bytes:
    """With a byte of its data changed."""
    return content[:40] + bytes([content[40] ^ 0xFF]) + content[41:]


def bad_name() -> bytes:
    """An archive with a name in no UTF-8."""
    return zipped(("é.py", b"")).replace("é".encode(), b"\xff\xfe")


def moved(content: bytes) -> bytes:
    """With a directory that claims to begin behind where it does, so that files begin before the archive."""
    at = content.rindex(b"PK\5\6") + 16
    return content[:at] + b"\x7f\0\0\0" + content[at + 4 :]


def packed_by(compression: int) -> bytes:
    """An archive of a Scrapy project and 4 MiB of zeros, compressed so."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.writestr("scrapy.cfg", "[settings]\ndefault = tiny.settings\n")
        archive.writestr("zeros.bin", bytes(4 << 20))
    return out.getvalue()


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "above": (lambda: zipped(("../evil.py", b"")), "leaves its folder"),
    "deep above": (lambda: zipped(("a/../../evil.py", b"")), "leaves its folder"),
    "absolute": (lambda: zipped(("/etc/cron.d/evil", b"")), "leaves its folder"),
    "drive": (lambda: zipped(("C:/evil.py", b"")), "not allowed"),
    "backslash": (lambda: zipped(("..\\evil.py", b"")), "not allowed"),
    "control character": (lambda: zipped(("a\nb.py", b"")), "not allowed"),
    "pth": (lambda: zipped(("a.PTH", b"import os")), "at its start"),
    "link": (lambda: link("passwd", b"/etc/passwd"), "link or a device"),
    "twice": (lambda: zipped(("a.py", b"1"), ("A.py", b"2")), "twice"),
    "file as folder": (lambda: zipped(("a", b"1"), ("a/b.py", b"2")), "cannot be unpacked"),
    "bomb": (lambda: zipped(("zeros.bin", bytes(64 << 20))), f"{MAX_RATIO} times its size"),
    "many": (lambda: zipped(*((f"{number}.py", b"") for number in range(5_001))), "more than 5,000"),
    "long name": (lambda: zipped(("a" * 600, b"")), "not allowed"),
    "broken": (lambda: truncated(zipped(("a.py", b"print(1)" * 100))), "cannot be unpacked"),
    "name in no UTF-8": (bad_name, "is broken"),
    "files before its start": (lambda: moved(zipped(("a.py", b""))), "is broken"),
    "long part of a name": (lambda: zipped(("b" * 300, b"")), "not allowed"),
    "long part in UTF-8": (lambda: zipped((f"a/{'é' * 200}", b"")), "not allowed"),
    "bzip2": (lambda: packed_by(zipfile.ZIP_BZIP2), "neither stored nor deflated"),
    "LZMA": (lambda: packed_by(zipfile.ZIP_LZMA), "neither stored nor deflated"),
    "no archive": (lambda: b"PK nothing", "cannot be unpacked"),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_archive_is_refused_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    """Whatever its directory says of names and sizes."""
    make, told = HOSTILE[kind]
    with pytest.raises(Misconfigured, match=told):
        unpack(make(), tmp_path / "code")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("name", ["scrapy.cfg", "EGG-INFO/entry_points.txt"])
def test_nothing_is_read_of_an_entry_that_unpacks_without_a_bound(name: str, compression: int) -> None:
    """The one that names the settings."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.writestr(name, "[settings]\ndefault = tiny.settings\n[scrapy]\nsettings = tiny.settings\n")
    with pytest.raises(Misconfigured, match="neither stored nor deflated"):
        opened(out.getvalue())


BROKEN: dict[str, Callable[[], bytes]] = {
    "name in no UTF-8": bad_name,
    "files before its start": lambda: moved(zipped(("scrapy.cfg", CONFIG.encode()))),
    "settings that cannot be unpacked": lambda: truncated(zipped(("scrapy.cfg", CONFIG.encode()))),
    "no archive": lambda: b"PK nothing",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_archive_is_told_as_broken_when_it_is_opened(kind: str) -> None:
    """It is no bug of crawlog's."""
    with pytest.raises(Misconfigured, match="is broken"):
        opened(BROKEN[kind]())


def test_an_egg_gets_the_scrapy_cfg_that_it_lacks(tmp_path: Path) -> None:
    """Compiled files of another Python stay out."""
    egg = zipped(
        ("EGG-INFO/entry_points.txt", b"[scrapy]\nsettings = tiny.settings\n"),
        ("tiny/settings.py", b""),
        ("tiny/__pycache__/settings.cpython-38.pyc", b""),
    )
    found = opened(egg)
    assert found.settings == "tiny.settings"
    unpack(found.content, tmp_path / "code", found.settings)
    assert (tmp_path / "code" / "scrapy.cfg").read_text() == "[settings]\ndefault = tiny.settings\n"
    assert not (tmp_path / "code" / "tiny" / "__pycache__").exists()


@pytest.mark.parametrize("settings", ["os; evil", "../x", "a b", "a..b"])
def test_settings_are_an_import_path(settings: str) -> None:
    """They become a line of a scrapy.cfg."""
    with pytest.raises(Misconfigured):
        opened(zipped(("EGG-INFO/entry_points.txt", f"[scrapy]\nsettings = {settings}\n".encode())))


def test_two_that_unpack_at_once_get_one_folder(tmp_path: Path) -> None:
    """The first one's stays; the other one's is removed."""
    content = zipped(*((f"{number}.py", b"x" * 100) for number in range(300)))
    threads = [threading.Thread(target=unpacking, args=(content, tmp_path / "code")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["code"]
    assert len(list((tmp_path / "code").iterdir())) == 300
