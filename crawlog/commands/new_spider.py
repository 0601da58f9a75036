"""`crawlog init` and `genspider`: folders and files to begin with. No file is overwritten."""

import re
from pathlib import Path

from crawlog.streams.errors import Misconfigured

from .spider_templates import PAGES, PROJECT, SPIDERS, TEST

_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
_DOMAIN = re.compile(r"(?:https?://)?([A-Za-z0-9.-]+(?::\d+)?)(/\S*)?")


def new_project(folder: Path) -> list[Path]:
    """The files of a new folder for spiders. Raises: Misconfigured: it holds files already, or cannot be made."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Misconfigured(f"{folder} is there already; name a new folder")
    written = []
    for name, text in PROJECT.items():
        written.append(_write(folder / name, text))
    return written


def new_spider(folder: Path, name: str, domain: str, template: str) -> tuple[Path, Path]:
    """The file of a new spider, and its test.

    Args:
        folder: Its sub-folders `spiders` and `tests` are used, where they are.
        domain: A host, or a URL.

    Raises: Misconfigured: a name is wrong, or a file is there already.
    """
    if template not in SPIDERS:
        raise Misconfigured(f"-t {template}: there are {', '.join(SPIDERS)}")
    if not _NAME.fullmatch(name):
        raise Misconfigured(f"{name!r}: a spider's name is lower case letters, digits and _, such as `books`")
    found = _DOMAIN.fullmatch(domain)
    if found is None:
        raise Misconfigured(f"{domain!r}: name a host such as shop.example, or its URL")
    spiders = folder / "spiders" if (folder / "spiders").is_dir() else folder
    kind = "".join(part.title() for part in name.split("_"))
    scheme = "http" if domain.startswith("http://") else "https"
    host = found[1].lower()
    filled = {"NAME": name, "KIND": kind, "HOST": host.partition(":")[0], "ORIGIN": f"{scheme}://{host}"}
    spider, test = spiders / f"{name}.py", folder / "tests" / f"test_{name}.py"
    page = folder / "tests" / "pages" / f"{name}.page"
    for path in (spider, test, page):
        if path.exists():
            raise Misconfigured(f"{path} is there already; it is not overwritten")
    filled["SPIDER"] = "parent / 'spiders'" if spiders != folder else "parent"
    _write(page, _filled(PAGES[template], filled))
    return _write(spider, _filled(SPIDERS[template], filled)), _write(test, _filled(TEST, filled))


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}") from None
    return path
