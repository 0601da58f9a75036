"""The record of a job, from the settings of the command that creates it. Pure.

settings ─► resolve_spec ─► JobSpec: every setting that decides about the job's URLs; the workers' own do not matter
JobSpec ──► job_values: the same by dotted key, for people      kept_settings: which ones a later command cannot change
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import msgspec

from crawlog.schemas.urls import JobSpec, RequestRules, Setting
from crawlog.streams.requests import RequestPolicy, WorkerLimits, within

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


class JobSpider(NamedTuple):
    """The fields of a job's record about its spider; by default the default spider's."""

    path: str = ""
    args: tuple[tuple[str, str], ...] = ()
    scrapy: tuple[tuple[str, str], ...] = ()
    starts: bool = False
    pipelines: bool = False
    fed: bool = False
    every: float = 0.0

    @classmethod
    def of(cls, spec: JobSpec) -> "JobSpider":
        """Those of a job's record."""
        return cls(spec.spider, spec.args, spec.scrapy, spec.starts, spec.pipelines, spec.fed, spec.every)


NO_SPIDER = JobSpider()  # The default spider


def resolve_spec(
    settings: "Settings",
    spider: JobSpider = NO_SPIDER,
    names: Iterable[str] = (),
    requests: RequestRules | None = None,
) -> JobSpec:
    """The record of a new job. It holds every setting that decides about its URLs; the workers' own do not matter.

    Args:
        names: Scope names of the seeds; see `scope_name`.
        requests: The rules of its requests; None for `request_rules`.
    """
    groups: dict[str, Any] = {name: rules(**_values_of(settings, name, rules)) for name, rules in _groups().items()}
    if settings.scope.kind != "any":
        groups["scope"] = msgspec.structs.replace(groups["scope"], names=tuple(sorted(set(names))))
    return JobSpec(
        spider=spider.path,
        args=spider.args,
        scrapy=spider.scrapy,
        starts=spider.starts,
        pipelines=spider.pipelines,
        fed=spider.fed,
        every=spider.every,
        requests=requests or request_rules(settings),
        **groups,
        **_values(settings, setting_of(JobSpec)),
    )


@cache
def setting_of(record: type[msgspec.Struct]) -> dict[str, Setting]:
    """The setting of each field of a job's record, from the annotations of the record."""
    fields = get_type_hints(record, include_extras=True).items()
    return {
        field: mark for field, hint in fields for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Setting)
    }


@cache
def _groups() -> dict[str, type[msgspec.Struct]]:
    """The groups of rules in a job's record; a group's fields are the settings of the section of the same name."""
    hints = get_type_hints(JobSpec).items()
    return {field: hint for field, hint in hints if isinstance(hint, type) and issubclass(hint, msgspec.Struct)}


@cache
def unresolved_fields() -> tuple[str, ...]:
    """The fields of a job's record that neither a setting nor its spider decides: `resolve_spec` leaves them unset."""
    resolved = {"spider", *JobSpider._fields, "requests", *_groups(), *setting_of(JobSpec)}
    return tuple(field for field in JobSpec.__struct_fields__ if field not in resolved)


def _values_of(settings: "Settings", section: str, rules: type[msgspec.Struct]) -> dict[str, Any]:
    given = getattr(settings, section)
    return {field: getattr(given, field) for field in rules.__struct_fields__ if (section, field) != ("scope", "names")}


def with_settings(spec: JobSpec, settings: "Settings", keys: Collection[str]) -> JobSpec:
    """A job's record with the values of some settings, by their dotted keys."""
    new = resolve_spec(settings)
    changed: dict[str, Any] = {
        field: getattr(new, field) for field, setting in setting_of(JobSpec).items() if setting.key in keys
    }
    for group, rules in _groups().items():
        values = {one: getattr(getattr(new, group), one) for one in rules.__struct_fields__ if f"{group}.{one}" in keys}
        changed[group] = msgspec.structs.replace(getattr(spec, group), **values)
    asked = {field: getattr(new.requests, field) for field, one in setting_of(RequestRules).items() if one.key in keys}
    if asked:
        changed["requests"] = msgspec.structs.replace(spec.requests or RequestRules(), **asked)
    return msgspec.structs.replace(spec, **changed)


def kept_for_life(before: JobSpec, after: JobSpec) -> list[str]:
    """Settings in which two records of a job differ, though what is stored of it depends on them."""
    for_life = {setting.key for setting in setting_of(JobSpec).values() if setting.is_fixed}
    old, new = job_values(before), job_values(after)
    others = (key for key in new if old.get(key) != new[key])
    return sorted(key for key in others if key in for_life or key.startswith("canonical.") or key == "scope.kind")


def request_rules(settings: "Settings") -> RequestRules:
    """The rules of requests that these settings give a job."""
    return RequestRules(**_values(settings, setting_of(RequestRules)))


def said_rules(settings: "Settings") -> RequestRules:
    """Like `request_rules`, only for settings that a flag, the environment or a file gives; other fields are unset."""
    given = _given(settings)
    rules = {field: setting for field, setting in setting_of(RequestRules).items() if setting.key in given}
    return RequestRules(**_values(settings, rules))


def own_policy(settings: "Settings") -> RequestPolicy:
    """A worker's own request policy, for the fields that a job's record leaves unset."""
    return within(request_rules(settings), settings.robots.token, limits_of(settings))


def limits_of(settings: "Settings") -> WorkerLimits:
    """A worker's limits, `limits.*` and `network.*`; no job's record can exceed them."""
    limits, network = settings.limits, settings.network
    return WorkerLimits(
        delay_s=limits.delay_s,
        per_host=limits.per_host,
        robots=limits.robots,
        attempts=limits.attempts,
        timeout_s=limits.timeout_s,
        max_body_bytes=min(settings.body_room, limits.max_body_bytes or settings.body_room),
        allow_private=network.allow_private,
        verify_tls=network.verify_tls,
        min_tls=network.min_tls,
        tls=network.tls,
        has_proxies=bool(settings.exits.proxies or settings.exits.lists),
        exit_groups=frozenset({"", *settings.exits.groups}),
    )


def job_keys() -> set[str]:
    """The keys of the settings that a job has: its record holds them, and workers of any settings obey them."""
    from crawlog.streams.settings import Settings

    return {*job_values(resolve_spec(Settings())), "scope.kind"} - {"scope.names"}


def _given(settings: "Settings") -> set[str]:
    """The keys of the settings that a flag, the environment or a file gives."""
    return {f"{name}.{field}" for name, section in settings for field in section.model_fields_set}


def _values(settings: "Settings", fields: Mapping[str, Setting]) -> dict[str, Any]:
    """The values of fields of a record, from their settings."""
    values = {}
    for field, setting in fields.items():
        section, _, name = setting.key.partition(".")
        value = getattr(getattr(settings, section), name)
        if setting.true_if:
            value = value == setting.true_if
        values[field] = bool(value) if setting.is_secret else value
    return values


def kept_settings(job: str, spec: JobSpec, settings: "Settings", requests: RequestRules | None = None) -> str:
    """A note for the user: which settings of the command have no effect, since the job has other ones. Empty for none.

    Args:
        spec: The job's record in the log.
        requests: The rules that a command without workers gives. None for a command with workers: their settings decide
            where the job's record sets none.
    """
    wanted = job_values(resolve_spec(settings, JobSpider.of(spec), spec.scope.names, requests))
    own = job_values(spec)
    compared = _given(settings) & (wanted.keys() if requests else own.keys())
    others = sorted(key for key in compared if key not in own or own[key] != wanted[key])
    if not others:
        return ""
    for_life = {setting.key for setting in setting_of(JobSpec).values() if setting.is_fixed}
    fixed = [key for key in others if key in for_life]
    hint = f"`crawlog run URL… --job {job}` changes them, given with all the job's settings"
    if fixed:
        hint = f"{', '.join(fixed)} cannot change" + (f"; {hint} (the others)" if len(fixed) < len(others) else "")
    return f"job {job} is there already and keeps its own {', '.join(others)}: {hint}"


def job_values(spec: JobSpec) -> dict[str, object]:
    """The values in a job's record, by the dotted keys of their settings; of a secret only whether it is given."""
    fields: dict[str, object] = {}
    for name in spec.__struct_fields__:
        value = getattr(spec, name)
        if isinstance(value, RequestRules):
            values = {setting.key: getattr(value, inner) for inner, setting in setting_of(RequestRules).items()}
            fields |= {key: value for key, value in values.items() if value is not None}
        elif isinstance(value, msgspec.Struct):
            fields |= {f"{name}.{inner}": getattr(value, inner) for inner in value.__struct_fields__}
        elif setting := setting_of(JobSpec).get(name):
            fields[setting.key] = value
    return fields
