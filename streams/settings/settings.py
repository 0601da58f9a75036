"""Where the value of a setting comes from, and what is said about a wrong one.

Precedence: flag > `-s` > spider > environment > `crawlog.toml` > default. `Settings` is frozen and passed in, never
imported as a global. A problem in any source stops the start, also where another source overrides it, and all problems
are told at once.
"""

import ast
import inspect
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self, get_type_hints

from pydantic import BaseModel, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from crawlog.streams.errors import Misconfigured
from crawlog.streams.printable import HIDDEN, without_secrets

from .sections import (
    Canonical,
    Dedup,
    Engine,
    Fetch,
    Frontier,
    Kafka,
    Limits,
    Links,
    Log,
    Network,
    Parse,
    Politeness,
    Render,
    Results,
    Robots,
    Run,
    Scope,
    Security,
    Sitemaps,
    Snapshots,
    Spider,
    State,
    Traps,
)

__all__ = [
    "Canonical",
    "Dedup",
    "Engine",
    "Fetch",
    "Frontier",
    "Kafka",
    "Limits",
    "Links",
    "Log",
    "Network",
    "Origin",
    "Parse",
    "Politeness",
    "Render",
    "Results",
    "Robots",
    "Run",
    "Scope",
    "Security",
    "Settings",
    "Sitemaps",
    "Snapshots",
    "Sources",
    "Spider",
    "State",
    "Traps",
    "for_stage",
    "load",
    "origins",
    "parse_pairs",
    "resolve",
    "to_environ",
]

CONFIG = Path("crawlog.toml")
"""Read from the working folder when no other file is named."""

NO_FILE = Path(os.devnull)
"""A configuration that sets nothing, for a process that is told all of its settings."""

NAMED_ONLY = ("engine.java", "render.browser", "security.spider_folders")
"""Settings that decide which programs and files are run. A file that was only found in the working folder may not set
them: it may have come with a clone or an archive."""

PREFIX = "CRAWLOG_"
"""Prefix of a setting's name in the environment; `__` stands for its dot."""

RECORD_HEADROOM = 256 * 1024
"""Room in a record beside the largest body: metadata with two URLs of 64 KiB each, keys, framing; bytes."""

SHORT = {"scope": "scope.kind", "render": "render.mode"}
"""Names that stand for another one, everywhere."""

ONE_PATTERN = frozenset({"scope.include", "scope.exclude", "render.include", "render.exclude"})
"""Lists whose text is one element: a comma belongs to the expression."""


class Settings(BaseSettings):
    """Every section; `Settings()` is the defaults, `load` is what the user asked for."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    engine: Engine = Engine()
    kafka: Kafka = Kafka()
    politeness: Politeness = Politeness()
    limits: Limits = Limits()
    fetch: Fetch = Fetch()
    render: Render = Render()
    network: Network = Network()
    robots: Robots = Robots()
    scope: Scope = Scope()
    traps: Traps = Traps()
    canonical: Canonical = Canonical()
    links: Links = Links()
    sitemaps: Sitemaps = Sitemaps()
    dedup: Dedup = Dedup()
    frontier: Frontier = Frontier()
    state: State = State()
    snapshots: Snapshots = Snapshots()
    log: Log = Log()
    parse: Parse = Parse()
    spider: Spider = Spider()
    results: Results = Results()
    security: Security = Security()
    run: Run = Run()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # pydantic-settings' signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # so too
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # so too
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # so too
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the caller passes: `resolve` reads the sources, so that it can name the one at fault."""
        return (init_settings,)

    def with_logins(self, logins: Iterable[str]) -> Self:
        """These settings with further `fetch.logins`."""
        fetch = self.fetch.model_copy(update={"logins": (*self.fetch.logins, *logins)})
        return self.model_copy(update={"fetch": fetch})

    @property
    def body_room(self) -> int:
        """Largest body that fits in a record, bytes."""
        return self.kafka.max_record_bytes - RECORD_HEADROOM

    @model_validator(mode="after")
    def body_fits_a_record(self) -> Self:
        """A page is one record."""
        need = self.fetch.max_body_bytes + RECORD_HEADROOM
        if self.kafka.max_record_bytes < need:
            raise ValueError(
                f"kafka.max_record_bytes = {self.kafka.max_record_bytes} is too small for a body of"
                f" fetch.max_body_bytes = {self.fetch.max_body_bytes}; set kafka.max_record_bytes to {need} or more"
            )
        return self


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
    """One setting as it is in force: its value as shown (secrets hidden) and who set it."""

    key: str
    value: object
    origin: str


class Resolved(NamedTuple):
    """The settings in force and, by key, who set each one that is not a default."""

    settings: Settings
    set_by: dict[str, str]


class _Given(NamedTuple):
    """A value as somebody gave it."""

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


def origins(sources: Sources) -> list[Origin]:
    """Every setting, its value and who set it.

    Raises: Misconfigured: with all problems.
    """
    settings, set_by = resolve(sources)
    return [Origin(key, masked(key, value), set_by.get(key, "default")) for key, value in values(settings).items()]


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
    nested: dict[str, dict[str, object]] = {}
    for key, given in in_force.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = given.value
    try:
        settings = Settings(**nested)  # type: ignore[arg-type]  # each section is validated from its mapping
    except ValidationError as error:
        raise Misconfigured("\n".join(_reason(one) for one in error.errors())) from None
    return Resolved(settings, {key: given.origin for key, given in in_force.items()})


def for_stage(settings: Settings, stage: str) -> Settings:
    """The settings without the secrets that a stage has no use for: only fetch logs in anywhere but at the cluster."""
    if stage == "fetch":
        return settings
    sections: dict[str, dict[str, object]] = {}
    for key, section in known_keys().items():
        name, _, field = key.partition(".")
        if is_secret(key) and name != "kafka":
            sections.setdefault(name, {})[field] = section.model_fields[field].default
    update = {name: getattr(settings, name).model_copy(update=fields) for name, fields in sections.items()}
    return settings.model_copy(update=update)


def to_environ(settings: Settings) -> dict[str, str]:
    """Environment variables from which a child process loads the same settings, whatever files it sees."""
    return {environ_name(key): _as_text(value) for key, value in values(settings).items()}


def environ_name(key: str) -> str:
    """`politeness.delay_s` → `CRAWLOG_POLITENESS__DELAY_S`."""
    return PREFIX + key.upper().replace(".", "__")


def values(settings: Settings) -> dict[str, object]:
    """Every value by its dotted key, in the order of the sections."""
    return {key: getattr(getattr(settings, key.partition(".")[0]), key.partition(".")[2]) for key in known_keys()}


@cache
def known_keys() -> dict[str, type[BaseModel]]:
    """Every dotted key and its section's model."""
    sections: dict[str, type[BaseModel]] = get_type_hints(Settings)
    names = Settings.model_fields
    return {f"{name}.{field}": sections[name] for name in names for field in sections[name].model_fields}


def is_secret(key: str) -> bool:
    """Whether a value holds a secret, or is one."""
    return not known_keys()[key].model_fields[key.partition(".")[2]].repr


def masked(key: str, value: object) -> object:
    """A valid value as it may be shown: its secrets are hidden, names of headers and addresses are not."""
    if not is_secret(key) or not value:
        return value
    if key == "fetch.headers" and isinstance(value, tuple):
        return tuple(f"{str(header).partition(':')[0]}: {HIDDEN}" for header in value)
    return without_secrets(str(value)) if key in ("engine.maven_url", "snapshots.to") else HIDDEN


def description(key: str) -> str:
    """A setting's docstring on one line."""
    return _docstrings(known_keys()[key]).get(key.partition(".")[2], "")


def wanted(key: str) -> str:
    """What a value must be: its type and range."""
    return _wanted(_schema(key))


def shown(value: object) -> str:
    """A value as a person reads it, and as `-s` takes it."""
    return "none" if value is None else ",".join(map(str, value)) if isinstance(value, tuple) else _as_text(value)


def reference() -> str:
    """All settings as Markdown: name, default, type and docstring, a table a section."""
    defaults = values(Settings())
    lines = [
        "# Settings",
        "",
        "Made by `crawlog settings --markdown` from the docstrings in `streams/settings/sections.py`.",
        "Precedence: flag > `-s KEY=VALUE` > spider > `CRAWLOG_SECTION__NAME` in the environment > `crawlog.toml`",
        "> default.",
        f"A `crawlog.toml` in the working folder may not set {', '.join(f'`{key}`' for key in NAMED_ONLY)}",
        "unless `--config crawlog.toml` names it: they decide what is run.",
        "`crawlog settings --origins` shows each value in force and who set it.",
    ]
    for key, section in known_keys().items():
        if key.partition(".")[2] == next(iter(section.model_fields)):
            lines += ["", f"## {key.partition('.')[0]}", "", str(section.__doc__), ""]
            lines += ["| setting | default | must be | |", "|---|---|---|---|"]
        cells = [f"`{key}`", f"`{shown(defaults[key])}`" if shown(defaults[key]) else "", wanted(key), description(key)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def suggestion(key: str) -> str:
    """What a user who wrote an unknown key should hear: the key most likely meant, or where the known ones are."""
    section, _, leaf = key.rpartition(".")
    by_leaf = {known.partition(".")[2]: known for known in reversed(known_keys())}  # of several the first one
    if close := get_close_matches(key, [*known_keys(), *SHORT], n=1, cutoff=0.85):
        return f"did you mean {close[0]}?"
    if close := get_close_matches(leaf, by_leaf, n=1, cutoff=0.75):
        return f"did you mean {by_leaf[close[0]]}?"
    siblings = [known.partition(".")[2] for known in known_keys() if known.startswith(f"{section}.")]
    return f"{section} has {', '.join(siblings)}" if siblings else "`crawlog settings` lists all"


# The sources, each one as given values in its own order; a later value replaces an earlier one.


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
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        rest = name.removeprefix(PREFIX).lower()
        if "__" in rest or rest in SHORT:
            yield _Given(_full(rest.replace("__", ".")), environ[name], f"environment {name}")
        elif rest in flat:
            problems.append(f"environment {name}: unknown; did you mean {environ_name(flat[rest])}?")


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
    """What is wrong with a file that nobody named, as far as no stronger source replaced its values."""
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
    """The valid ones, by key and with their value converted; the others end in `problems`."""
    for one in given:
        if one.key not in known_keys():
            problems.append(f"{one.origin}: unknown setting {one.key!r}; {suggestion(one.key)}")
            continue
        try:
            yield one.key, one._replace(value=_converted(one.key, one.value))
        except ValidationError as error:
            got = HIDDEN if is_secret(one.key) else repr(one.value)
            why = "".join(f" ({_reason(e)})" for e in error.errors() if e["type"] == "value_error")
            problems.append(f"{one.origin}: {one.key} = {got} is wrong{why}; it must be {wanted(one.key)}")


def _converted(key: str, value: object) -> object:
    """The value that a setting takes.

    Raises: ValidationError: it takes no such value.
    """
    name = key.partition(".")[2]
    if isinstance(value, str):
        value = _from_text(key, value)
    if isinstance(value, bool) and _schema(key).get("type") != "boolean":
        value = str(value)  # pydantic takes true for 1
    return getattr(known_keys()[key].model_validate({name: value}), name)


def _from_text(key: str, text: str) -> object:
    """Text as the value it stands for, where pydantic would not know: none and lists."""
    schema = _schema(key)
    if {"type": "null"} in schema.get("anyOf", ()):
        nothing = ("", "none", "null") if "path" not in str(schema) else ("",)
        return None if text in nothing else text
    if schema.get("type") != "array":
        return text
    if (listed := _json_list(text)) is not None:
        return listed
    parts = [text] if key in ONE_PATTERN else text.split(",")
    return tuple(part.strip() for part in parts if part.strip())


def _json_list(text: str) -> tuple[str, ...] | None:
    try:
        listed = json.loads(text)
    except ValueError:
        return None
    return tuple(listed) if isinstance(listed, list) and all(isinstance(one, str) for one in listed) else None


def _as_text(value: object) -> str:
    """The inverse of `_from_text` and pydantic's conversion."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return json.dumps(value)
    return "" if value is None else str(value)


def _complain(problems: list[str]) -> None:
    if len(problems) == 1:
        raise Misconfigured(problems[0])
    if problems:
        raise Misconfigured(f"{len(problems)} problems with the settings:\n  " + "\n  ".join(problems))


def _reason(error: Mapping[str, Any]) -> str:
    """The words of our own validators, without pydantic's frame."""
    return str(error["msg"]).removeprefix("Value error, ")


@cache
def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """What stands below each field. Pydantic can read it too, but at import: a fifth of a worker's start."""
    (model,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(model, ast.ClassDef)
    found = {}
    for field, below in pairwise(model.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


@cache
def _schemas(section: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Each field's JSON schema."""
    schemas: dict[str, dict[str, Any]] = section.model_json_schema()["properties"]
    return schemas


def _schema(key: str) -> dict[str, Any]:
    return _schemas(known_keys()[key])[key.partition(".")[2]]


def _wanted(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(_wanted(one) for one in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    kind = schema.get("type", "text")
    if kind == "array":
        return f"a list, with commas or as JSON, each {_wanted(schema['items'])}"
    words = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "null": "none"}
    text = words.get(kind, "a path" if schema.get("format") == "path" else "text")
    return text + _range(schema)


def _range(schema: Mapping[str, Any]) -> str:
    low, above, high = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" >= {low}"
    return f" > {above}" if above is not None else ""
