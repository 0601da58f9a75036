"""The spider that a command names: its reference, and what its child process says of it before anything is asked.

    FILE.py[:Class] | pkg.module:Class | NAME ─► reference (`named`) ─► SpiderFacts (`facts_of`)

NAME is a spider of the Scrapy project whose scrapy.cfg lies in the working folder, or above it.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.request import getproxies

import msgspec

from crawlog.streams.errors import Misconfigured, SpiderDied
from crawlog.streams.files import is_utf_8
from crawlog.streams.spiders import SettingOrigin, SpiderFacts, SpiderRef

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

PROJECT = "scrapy.cfg"  # The file that marks the folder of a Scrapy project

# Loads what knows the origins of Scrapy's settings, in the child.
ORIGINS_LOADER = "crawlog.streams.spiders.scrapy.settings_table:load_origins"

_SCRAPY_SETTING = re.compile(r"[A-Z][A-Z0-9_]*")

Pairs = tuple[tuple[str, str], ...]


class NamedSpider(NamedTuple):
    """A spider that a command names, loaded once."""

    ref: SpiderRef
    facts: SpiderFacts


def named(text: str, args: Pairs, scrapy: Pairs, settings: "Settings") -> NamedSpider:
    """The spider of `--spider`.

    Args:
        settings: Of the command, without those of the spider: what its process may do.

    Raises: Misconfigured: there is no such spider, it is broken, or it uses what cannot work here.
    """
    path = path_of(text)
    if not is_utf_8(path):
        raise Misconfigured(f"--spider: {path!r} is not UTF-8; use another name or folder")
    ref = SpiderRef(path, args, scrapy)
    facts = facts_of(ref, settings)
    if scrapy and not facts.is_scrapy:
        raise Misconfigured(
            f"-s {scrapy[0][0]}: a setting of Scrapy's, and {facts.path} is a spider of crawlog's own;"
            " see `crawlog settings` for its settings"
        )
    return NamedSpider(msgspec.structs.replace(ref, path=facts.path), facts)


def path_of(text: str) -> str:
    """The spider's name as a job's record has it: files and folders are absolute.

    Raises: Misconfigured: a bare NAME, and no Scrapy project is here.
    """
    file, colon, kind = text.rpartition(".py:")
    if colon or text.endswith(".py"):
        path = Path(f"{file}.py" if colon else text).expanduser().absolute()
        return f"{path}:{kind}" if colon else str(path)
    here = Path.cwd()
    if ":" in text:
        module = here.joinpath(*text.partition(":")[0].split("."))
        return f"{here}:{text}" if module.is_dir() or module.with_suffix(".py").is_file() else text
    for folder in (here, *here.parents):
        if (folder / PROJECT).is_file():
            return f"{folder}:{text}"
    raise Misconfigured(
        f"--spider {text}: neither FILE.py[:Class] nor pkg.module:Class, and no Scrapy project is here"
        f" (no {PROJECT} in {here} or above it)"
    )


def facts_of(ref: SpiderRef, settings: "Settings") -> SpiderFacts:
    """What a spider says of itself, in a child process.

    Raises: Misconfigured: it cannot be loaded; the message says why.
    """
    from crawlog.agents.sandbox import ChildRules, SpiderChild

    try:
        with SpiderChild(ref, ChildRules.of(settings, None)) as child:
            facts = _with_defaults(_within_a_record(child.facts(), settings), settings)
    except SpiderDied as error:
        raise Misconfigured(f"--spider {ref.path}: {error}") from None
    if not facts.reads_proxies or settings.exits.proxies:
        return facts
    return msgspec.structs.replace(facts, notes=(*facts.notes, *_unused_proxies()))


def _with_defaults(facts: SpiderFacts, settings: "Settings") -> SpiderFacts:
    """A Scrapy project's facts with a line about crawlog's defaults, without those settings that the user sets."""
    left = [told for name, told in facts.defaults.items() if not _is_given(settings, name)]
    if not left:
        return facts
    note = "crawlog's defaults count where Scrapy's differ: " + "; ".join(left)
    return msgspec.structs.replace(facts, notes=(note, *facts.notes))


def _is_given(settings: "Settings", name: str) -> bool:
    """Whether a source of the user sets a setting."""
    section, _, field = name.partition(".")
    return field in getattr(settings, section).model_fields_set


def _within_a_record(facts: SpiderFacts, settings: "Settings") -> SpiderFacts:
    """A Scrapy project's facts with a largest body that a record holds: Scrapy's own limit is 1 GiB."""
    wanted = facts.settings.get("fetch.max_body_bytes")
    if not facts.is_scrapy or not isinstance(wanted, int) or wanted <= settings.body_room:
        return facts
    note = (
        f"DOWNLOAD_MAXSIZE = {wanted}: bodies have at most {settings.body_room} bytes, what a record holds"
        " (kafka.max_record_bytes)"
    )
    bounded = facts.settings | {"fetch.max_body_bytes": settings.body_room}
    return msgspec.structs.replace(facts, settings=bounded, notes=(*facts.notes, note))


def _unused_proxies() -> Iterator[str]:
    """A line for the proxies of this process's environment; their URLs may have logins."""
    unused = [f"{scheme}_proxy" for scheme in ("http", "https") if scheme in getproxies()]
    if unused:
        yield f"{', '.join(unused)} of the environment: Scrapy uses it, crawlog does not: set -s exits.proxies=URL"


def scrapy_origins(spider: NamedSpider, settings: "Settings") -> list[SettingOrigin]:
    """What became of each setting of a Scrapy spider; none for a spider of crawlog's own."""
    if not spider.facts.is_scrapy:
        return []
    from crawlog.agents.sandbox import ChildRules, SpiderChild

    with SpiderChild(spider.ref, ChildRules.of(settings, None), loader=ORIGINS_LOADER) as child:
        return msgspec.json.decode(child.call("origins"), type=list[SettingOrigin])


def arguments_in(pairs: Iterable[str]) -> Pairs:
    """Arguments of a spider from `NAME=VALUE` texts; the last value of a name counts.

    Raises: Misconfigured: a text has another form, or no record can hold it.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not is_argument(name):
            raise Misconfigured(f"-a {pair}: an argument of a spider is NAME=VALUE, such as -a section=books")
        if not is_utf_8(value):
            raise Misconfigured(f"-a {name}: its value is not UTF-8")
        found[name] = value
    return tuple(sorted(found.items()))


def is_argument(name: str) -> bool:
    """Whether an argument of a spider may be named so: a spider may read any name from its `**kwargs`."""
    return name != "" and "=" not in name and name.isprintable()


def is_of_scrapy(key: str) -> bool:
    """Whether the name of a setting is one of Scrapy's: upper case, without a dot."""
    return _SCRAPY_SETTING.fullmatch(key) is not None


def scrapy_apart(pairs: Iterable[str]) -> tuple[tuple[str, ...], Pairs]:
    """The `KEY=VALUE` texts of crawlog's settings, and Scrapy's settings; the last value of a name counts.

    Raises: Misconfigured: no record can hold a setting of Scrapy's.
    """
    own: list[str] = []
    scrapy: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if equals and is_of_scrapy(name.strip()):
            if not is_utf_8(value):
                raise Misconfigured(f"-s {name.strip()}: its value is not UTF-8")
            scrapy[name.strip()] = value
        else:
            own.append(pair)
    return tuple(own), tuple(sorted(scrapy.items()))
