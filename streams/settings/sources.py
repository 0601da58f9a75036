"""Where the value of a setting comes from, and what is said about a wrong one.

Precedence: flag > `-s` > spider > environment > `crawlog.toml` > default. A problem in any source stops the start, even
where another source overrides the value, and all problems are told at once.
"""

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from crawlog.streams.errors import Misconfigured
from crawlog.streams.files import is_utf_8
from crawlog.streams.printable import HIDDEN

from .reference import description, json_schema, suggestion, wanted
from .settings import (
    ENVIRON_PREFIX,
    NAMED_ONLY,
    SET_BY,
    SHORT,
    Settings,
    environ_name,
    is_secret,
    known_keys,
    masked,
    values,
)

CONFIG = Path("crawlog.toml")  # Read from the working folder when no other file is named

DEFAULT = "default"  # The source of what nobody has set

# A configuration file that sets nothing, for a process that gets all of its settings in the environment.
NO_FILE = Path(os.devnull)

# Lists whose text is one element: a comma belongs to the expression.
ONE_PATTERN = frozenset(
    {"scope.include", "scope.exclude", "render.include", "render.exclude", "exits.ban_redirects", "exits.ban_texts"}
)


class Sources(NamedTuple):
    """All that can set a value, the strongest first.

    Attributes:
        flags: By dotted key, from the command line's own options.
        pairs: `KEY=VALUE`, from `-s`.
        spider: By dotted key.
        config: The file named by `--config`; None for `crawlog.toml` in the working folder, if there is one.
        environ: None for the process's.
    """

    flags: Mapping[str, object] = {}
    pairs: Sequence[str] = ()
    spider: Mapping[str, object] = {}
    config: Path | None = None
    environ: Mapping[str, str] | None = None


class Origin(NamedTuple):
    """One setting in force: its value as shown (secrets hidden), its source, and what it is about.

    Attributes:
        origin: `default`, or `crawlog` for what it has set itself, such as the address of its own engine.
    """

    key: str
    value: object
    origin: str
    default: object = None
    about: str = ""


class Resolved(NamedTuple):
    """The settings in force and, by key, the source of each that is not a default."""

    settings: Settings
    set_by: dict[str, str]


class _Given(NamedTuple):
    """A value as its source gives it."""

    key: str
    value: object
    origin: str


def load(
    overrides: Mapping[str, object] | None = None,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings in force.

    Args:
        overrides: By dotted key; they win over everything else.
        config: A file that must exist; None for `crawlog.toml` in the working folder, if there is one.
        environ: None for the process's environment.
    Raises: Misconfigured: with all problems.
    """
    return resolve(Sources(flags=overrides or {}, config=config, environ=environ)).settings


def origins(of: Sources | Settings) -> list[Origin]:
    """Every setting, its value and its source.

    Raises: Misconfigured: with all problems.
    """
    settings = of if isinstance(of, Settings) else resolve(of).settings
    plain = values(Settings())
    return [
        Origin(key, masked(key, value), _origin(settings, key, value, plain[key]), plain[key], description(key))
        for key, value in values(settings).items()
    ]


def _origin(settings: Settings, key: str, value: object, default: object) -> str:
    return settings.set_by.get(key) or (DEFAULT if value == default else "crawlog")


def parse_pairs(pairs: Iterable[str]) -> dict[str, object]:
    """The values in `KEY=VALUE` texts, by dotted key; a list given several times collects.

    Raises: Misconfigured: with all unknown keys and wrong values.
    """
    problems: list[str] = []
    parsed = dict(_checked(_from_pairs(pairs, problems), problems))
    _complain(problems)
    return {key: given.value for key, given in parsed.items()}


def resolve(sources: Sources) -> Resolved:
    """The settings that the sources give together.

    Raises: Misconfigured: with all problems.
    """
    problems: list[str] = []
    environ = os.environ if sources.environ is None else sources.environ
    weakest_first = [
        *_from_file(sources.config, problems),
        *_from_environ(environ, problems),
        *_from_mapping(sources.spider, "spider"),
        *_from_pairs(sources.pairs, problems),
        *_from_mapping(sources.flags, "flag"),
    ]
    in_force = dict(_checked(weakest_first, problems))
    if sources.config is None:
        problems += _found_only(in_force)
    _complain(problems)
    set_by = {key: given.origin for key, given in in_force.items()} | _noted(in_force, environ)
    nested: dict[str, dict[str, object]] = {}
    for key, given in in_force.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = given.value
    try:
        settings = Settings.model_validate(nested)
    except ValidationError as error:
        raise Misconfigured("\n".join(_reason(one) for one in error.errors())) from None
    settings.__dict__["_set_by"] = {key: origin for key, origin in set_by.items() if origin != DEFAULT}
    return Resolved(settings, set_by)


# The sources. Each yields its values in its own order; a later value replaces an earlier one.


def _from_mapping(mapping: Mapping[str, object], origin: str) -> Iterator[_Given]:
    for key, value in mapping.items():
        yield _Given(_full(key), value, origin)


def _from_pairs(pairs: Iterable[str], problems: list[str]) -> Iterator[_Given]:
    lists: dict[str, tuple[object, ...]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        key = _full(name.strip())
        if not equals:
            problems.append(f"-s {pair}: a setting is KEY=VALUE, such as -s politeness.delay_s=2")
            continue
        value = _from_text(key, text) if key in known_keys() else text
        if isinstance(value, tuple):
            value = lists[key] = lists.get(key, ()) + value
        yield _Given(key, value, "-s")


def _from_environ(environ: Mapping[str, str], problems: list[str]) -> Iterator[_Given]:
    flat = {key.replace(".", "_"): key for key in known_keys()}
    for name in sorted(name for name in environ if name.startswith(ENVIRON_PREFIX)):
        rest = name.removeprefix(ENVIRON_PREFIX).lower()
        if "__" in rest or rest in SHORT:
            yield _Given(_full(rest.replace("__", ".")), environ[name], f"environment {name}")
        elif rest in flat:
            problems.append(f"environment {name}: unknown; did you mean {environ_name(flat[rest])}?")


def _noted(in_force: Mapping[str, _Given], environ: Mapping[str, str]) -> dict[str, str]:
    """Where the process that made this environment had the settings from; empty if none has made it."""
    try:
        noted = json.loads(environ.get(SET_BY, ""))
    except ValueError:
        return {}
    if not isinstance(noted, dict):
        return {}
    own = (key for key, one in in_force.items() if one.origin == f"environment {environ_name(key)}")
    return {key: str(noted.get(key, DEFAULT)) for key in own}


def _from_file(path: Path | None, problems: list[str]) -> Iterator[_Given]:
    if path is None and not CONFIG.exists():
        return
    path = path or CONFIG
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return
    except ValueError as error:
        problems.append(f"{path}: not TOML: {error}")
        return
    for name, table in tables.items():
        if isinstance(table, dict):
            yield from (_Given(_full(f"{name}.{field}"), value, str(path)) for field, value in table.items())
        else:
            yield _Given(_full(name), table, str(path))


def _found_only(in_force: Mapping[str, _Given]) -> list[str]:
    """Problems of a crawlog.toml that was found, not named: it sets what only a named file may set."""
    return [
        f"{CONFIG}: {key} decides what is run, and this file was found in the working folder, not named."
        f" If it is yours, give --config {CONFIG}; or set it with -s or as {environ_name(key)}"
        for key in NAMED_ONLY
        if key in in_force and in_force[key].origin == str(CONFIG)
    ]


def _full(key: str) -> str:
    return SHORT.get(key, key)


# From what was given to what is in force.


def _checked(given: Iterable[_Given], problems: list[str]) -> Iterator[tuple[str, _Given]]:
    """The valid values, converted, by key; a message for each of the others goes to `problems`."""
    for one in given:
        if one.key not in known_keys():
            problems.append(f"{one.origin}: unknown setting {one.key!r}; {suggestion(one.key)}")
            continue
        if not _is_utf_8(one.key, one.value):
            problems.append(f"{one.origin}: {one.key}: its value is not UTF-8")
            continue
        try:
            yield one.key, one._replace(value=_converted(one.key, one.value))
        except ValidationError as error:
            got = HIDDEN if is_secret(one.key) else repr(one.value)
            why = "".join(f" ({_reason(e)})" for e in error.errors() if e["type"] == "value_error")
            problems.append(f"{one.origin}: {one.key} = {got} is wrong{why}; it must be {wanted(one.key)}")


def _is_utf_8(key: str, value: object) -> bool:
    """Whether a record can hold the value; a path is the machine's own, and may be of any bytes."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return is_utf_8(text) or "'format': 'path'" in str(json_schema(key))


def _converted(key: str, value: object) -> object:
    """The value that a setting takes.

    Raises: ValidationError: it takes no such value.
    """
    name = key.partition(".")[2]
    if isinstance(value, str):
        value = _from_text(key, value)
    if isinstance(value, bool) and json_schema(key).get("type") != "boolean":
        value = str(value)  # pydantic takes true for 1
    return getattr(known_keys()[key].model_validate({name: value}), name)


def _from_text(key: str, text: str) -> object:
    """The value that a text stands for, where pydantic does not know: none, lists and tables."""
    known = json_schema(key)
    if {"type": "null"} in known.get("anyOf", ()):
        nothing = ("", "none", "null") if "path" not in str(known) else ("",)
        return None if text in nothing else text
    if known.get("type") == "object":
        return _json_table(text)
    if known.get("type") != "array":
        return text
    if (listed := _json_list(text)) is not None:
        return listed
    parts = [text] if key in ONE_PATTERN else text.split(",")
    return tuple(part.strip() for part in parts if part.strip())


def _json_table(text: str) -> object:
    """A table; other texts stay as they are, and pydantic refuses them."""
    try:
        table = json.loads(text or "{}")
    except ValueError:
        return text
    return table if isinstance(table, dict) else text


def _json_list(text: str) -> tuple[str | int, ...] | None:
    try:
        listed = json.loads(text)
    except ValueError:
        return None
    return tuple(listed) if isinstance(listed, list) and all(type(one) in (str, int) for one in listed) else None


def _complain(problems: list[str]) -> None:
    if len(problems) == 1:
        raise Misconfigured(problems[0])
    if problems:
        raise Misconfigured(f"{len(problems)} problems with the settings:\n  " + "\n  ".join(problems))


def _reason(error: Mapping[str, Any]) -> str:
    """The message of our own validator, without pydantic's prefix."""
    return str(error["msg"]).removeprefix("Value error, ")
