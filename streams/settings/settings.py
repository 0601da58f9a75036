"""`Settings`: every section, its keys and their values. Frozen and passed in, never imported as a global."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Self, get_type_hints

from pydantic import BaseModel, ConfigDict, model_validator

from crawlog.streams.printable import HIDDEN, without_secrets

from .exit_section import Exits
from .field_types import RECORD_HEADROOM
from .machine import (
    Engine,
    Hooks,
    Kafka,
    Log,
    Pages,
    Parse,
    Query,
    Results,
    Run,
    Security,
    Service,
    Sink,
    Snapshots,
    State,
)
from .sections import (
    Canonical,
    Dedup,
    Fetch,
    Fingerprint,
    Frontier,
    Limits,
    Links,
    Network,
    Pipelines,
    Politeness,
    Recrawl,
    Render,
    Robots,
    Scope,
    Sitemaps,
    Spider,
    Traps,
)

ENVIRON_PREFIX = "CRAWLOG_"  # Prefix of a setting's name in the environment; `__` stands for its dot

# Settings that decide which programs and files are run. A file that was only found in the working folder may not set
# them: it may have come with a clone or an archive.
NAMED_ONLY = (
    "engine.java",
    "exits.lists",
    "exits.listen",
    "exits.redial",
    "hooks.targets",
    "render.browser",
    "security.spider_folders",
    "security.trusted_keys",
    "service.address",
    "service.users",
    "service.alert",
    "service.tokens",
    "sink.folder",
    "sink.outputs",
)

# Further names of settings, valid in every source.
SHORT = {"scope": "scope.kind", "render": "render.mode", "fetch.proxies": "exits.proxies"}


SET_BY = f"{ENVIRON_PREFIX}SET_BY"  # Has the sources of the settings, where another process has resolved them


class Settings(BaseModel):
    """Every section. `Settings()` has the defaults; `load` reads the user's sources."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Engine = Engine()
    kafka: Kafka = Kafka()
    politeness: Politeness = Politeness()
    limits: Limits = Limits()
    fetch: Fetch = Fetch()
    exits: Exits = Exits()
    render: Render = Render()
    network: Network = Network()
    robots: Robots = Robots()
    scope: Scope = Scope()
    traps: Traps = Traps()
    recrawl: Recrawl = Recrawl()
    canonical: Canonical = Canonical()
    links: Links = Links()
    sitemaps: Sitemaps = Sitemaps()
    dedup: Dedup = Dedup()
    fingerprint: Fingerprint = Fingerprint()
    frontier: Frontier = Frontier()
    state: State = State()
    snapshots: Snapshots = Snapshots()
    log: Log = Log()
    pages: Pages = Pages()
    parse: Parse = Parse()
    spider: Spider = Spider()
    pipelines: Pipelines = Pipelines()
    results: Results = Results()
    sink: Sink = Sink()
    hooks: Hooks = Hooks()
    query: Query = Query()
    service: Service = Service()
    security: Security = Security()

    run: Run = Run()

    @property
    def set_by(self) -> Mapping[str, str]:
        """The source of each setting that is not a default, by key; `resolve` notes it. It is no part of the value."""
        noted: Mapping[str, str] = self.__dict__.get("_set_by", {})
        return noted

    def with_logins(self, logins: Iterable[str]) -> Self:
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


@cache
def known_keys() -> dict[str, type[BaseModel]]:
    """Every dotted key and its section's model."""
    sections: dict[str, type[BaseModel]] = get_type_hints(Settings)
    names = Settings.model_fields
    return {f"{name}.{field}": sections[name] for name in names for field in sections[name].model_fields}


def values(settings: Settings) -> dict[str, object]:
    return {key: getattr(getattr(settings, key.partition(".")[0]), key.partition(".")[2]) for key in known_keys()}


def is_secret(key: str) -> bool:
    return not known_keys()[key].model_fields[key.partition(".")[2]].repr


def masked(key: str, value: object) -> object:
    """A valid value as shown to users: secrets are hidden, names of headers and addresses are not."""
    if key == "sink.outputs" and isinstance(value, dict):
        return {name: without_secrets(str(place)) for name, place in value.items()}
    if not is_secret(key) or not value:
        return value
    if key == "fetch.headers" and isinstance(value, tuple):
        return tuple(f"{str(header).partition(':')[0]}: {HIDDEN}" for header in value)
    return without_secrets(str(value)) if key in ("engine.maven_url", "snapshots.to") else HIDDEN


def for_stage(settings: Settings, stage: str) -> Settings:
    """The settings without the secrets that a stage does not need.

    All log in at the cluster. Only fetch logs in at other places, and only the service has users. The service writes
    records of jobs, which name the headers and say whether there are proxies: it gets these without their logins.
    """
    sections: dict[str, dict[str, object]] = {}
    for key, section in known_keys().items():
        name, _, field = key.partition(".")
        is_needed = name == "kafka" or (stage == "service" if name == "service" else stage == "fetch")
        is_needed |= stage == "exit" and key == "exits.redial"
        if is_secret(key) and not is_needed:
            sections.setdefault(name, {})[field] = section.model_fields[field].get_default(call_default_factory=True)
    if stage == "service":
        sections["fetch"] |= {"headers": settings.fetch.headers}
        sections["exits"] = {"proxies": tuple(without_secrets(proxy) for proxy in settings.exits.proxies)}
    update = {name: getattr(settings, name).model_copy(update=fields) for name, fields in sections.items()}
    return settings.model_copy(update=update)


def to_environ(settings: Settings) -> dict[str, str]:
    """Environment variables from which a child process loads the same settings; no file overrides them."""
    given = {environ_name(key): as_text(value) for key, value in values(settings).items()}
    return given | {SET_BY: json.dumps(settings.set_by, sort_keys=True)}


def environ_name(key: str) -> str:
    """`politeness.delay_s` → `CRAWLOG_POLITENESS__DELAY_S`."""
    return ENVIRON_PREFIX + key.upper().replace(".", "__")


def as_text(value: object) -> str:
    """A value as sources take it: `_from_text` and pydantic convert it back."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | dict):
        return json.dumps(value)
    return "" if value is None else str(value)
