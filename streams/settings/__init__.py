"""Settings: one frozen value, made once and passed in.

    flag > -s > spider > environment > crawlog.toml > default
      │ sources     `resolve`: takes from each source in turn, checks and converts; all problems at once
      ▼
    Settings        settings: every section, `known_keys`, secrets, the environment of a child process
      │ sections    the crawl: politeness, fetch, scope, links …   machine: kafka, state, run …
      ▼             field_types: what sections and fields are made of
    reference       docs/settings.md, `crawlog settings`, the words for a type, the key that was meant
    browser         the installed Chromium that `render.browser` means

A new setting is a field of a section with a docstring below it: the command line, the environment, the file, the checks
and the reference read it from there. docs/extending.md shows one.
"""

from .browser import browser_version, find_browser, wants_browser
from .field_types import MAX_BODY_BYTES, RECORD_HEADROOM
from .machine import PREFIX, Kafka, Parse
from .reference import as_markdown, shown, suggestion
from .sections import Fetch, Politeness, Robots
from .settings import (
    SHORT,
    Settings,
    as_text,
    environ_name,
    for_stage,
    is_secret,
    known_keys,
    masked,
    to_environ,
    values,
)
from .sources import NO_FILE, Sources, load, origins, parse_pairs, resolve

__all__ = [
    "MAX_BODY_BYTES",
    "NO_FILE",
    "PREFIX",
    "RECORD_HEADROOM",
    "SHORT",
    "Fetch",
    "Kafka",
    "Parse",
    "Politeness",
    "Robots",
    "Settings",
    "Sources",
    "as_markdown",
    "as_text",
    "browser_version",
    "environ_name",
    "find_browser",
    "for_stage",
    "is_secret",
    "known_keys",
    "load",
    "masked",
    "origins",
    "parse_pairs",
    "resolve",
    "shown",
    "suggestion",
    "to_environ",
    "values",
    "wants_browser",
]
