"""Words about settings: docstrings, types in words, the page docs/settings.md, the key most likely meant."""

import ast
import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from .settings import NAMED_ONLY, SHORT, Settings, as_text, known_keys, values


def as_markdown() -> str:
    """All settings as Markdown: name, default, type and docstring, a table a section."""
    defaults = values(Settings())
    lines = [
        "# Settings",
        "",
        "Made by `crawlog settings --markdown` from the docstrings in `streams/settings/` (sections.py, machine.py).",
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


def description(key: str) -> str:
    return _docstrings(known_keys()[key]).get(key.partition(".")[2], "")


def wanted(key: str) -> str:
    """What a value must be: its type and range."""
    return _words(json_schema(key))


def shown(value: object) -> str:
    """A value as a person reads it, and as `-s` takes it."""
    return "none" if value is None else ",".join(map(str, value)) if isinstance(value, tuple) else as_text(value)


def suggestion(key: str) -> str:
    """Advice for an unknown key: the key most likely meant, or the place of the known ones."""
    section, _, leaf = key.rpartition(".")
    by_leaf = {known.partition(".")[2]: known for known in reversed(known_keys())}  # of several the first one
    if close := get_close_matches(key, [*known_keys(), *SHORT], n=1, cutoff=0.85):
        return f"did you mean {close[0]}?"
    if close := get_close_matches(leaf, by_leaf, n=1, cutoff=0.75):
        return f"did you mean {by_leaf[close[0]]}?"
    siblings = [known.partition(".")[2] for known in known_keys() if known.startswith(f"{section}.")]
    return f"{section} has {', '.join(siblings)}" if siblings else "`crawlog settings` lists all"


def json_schema(key: str) -> dict[str, Any]:
    return _schemas(known_keys()[key])[key.partition(".")[2]]


@cache
def _schemas(section: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Each field's JSON schema."""
    schemas: dict[str, dict[str, Any]] = section.model_json_schema()["properties"]
    return schemas


@cache
def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """The docstring below each field. Pydantic can read it, too, but at import: a fifth of a worker's start."""
    (model,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(model, ast.ClassDef)
    found = {}
    for field, below in pairwise(model.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def _words(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(_words(one) for one in schema["anyOf"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    kind = schema.get("type", "text")
    if kind == "array":
        return f"a list, with commas or as JSON, each {_words(schema['items'])}"
    words = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "null": "none"}
    words["object"] = "a table, or a JSON object"
    text = words.get(kind, "a path" if schema.get("format") == "path" else "text")
    return text + _range(schema)


def _range(schema: Mapping[str, Any]) -> str:
    low, above, high = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" >= {low}"
    return f" > {above}" if above is not None else ""
