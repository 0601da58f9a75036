"""How a job's URLs are asked for: what its record says, what the worker says instead, and which of them is stricter."""

from typing import Any

import msgspec
import pytest

from crawlog.schemas import urls as u
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec, UrlsRecord
from crawlog.streams.job_spec import limits_of, own_policy, request_rules, resolve_spec
from crawlog.streams.requests.request_rules import (
    NEEDS_LAX_TLS,
    NEEDS_PRIVATE,
    NEEDS_PROXIES,
    RequestPolicy,
    WorkerLimits,
    policy_for,
    policy_of,
)
from crawlog.streams.settings import RECORD_HEADROOM, Settings
from crawlog.streams.settings.sources import NO_FILE, load
from tests.support.dispatching import World

GIVEN = {
    "politeness.delay_s": 9.0,
    "politeness.per_host": 7,
    "robots.obey": False,
    "robots.token": "jobbot",
    "fetch.user_agent": "job/1",
    "fetch.headers": ("From: j@example.org",),
    "fetch.attempts": 8,
    "fetch.retry_delay_s": 0.5,
    "fetch.retry_statuses": (403, 999),
    "fetch.repeat_posts": False,
    "fetch.timeout_s": 77.0,
    "fetch.connect_timeout_s": 1.5,
    "fetch.first_byte_timeout_s": 2.5,
    "fetch.chunk_timeout_s": 3.5,
    "fetch.max_body_bytes": 4096,
    "fetch.content_types": ("application/pdf",),
    "fetch.conditional": False,
    "fetch.cookies": True,
    "fetch.logged_out": ("403",),
    "fetch.login_again_s": 99.0,
    "render.timeout_s": 5.0,
    "render.settle_s": 0.1,
    "render.block": ("script",),
    "render.max_requests": 3,
    "render.max_bytes": 2048,
}
"""Of a job, each other than the default."""


def settings(**given: Any) -> Settings:
    """Those alone, `__` for the dot."""
    return load({name.replace("__", "."): value for name, value in given.items()}, NO_FILE, {})


def met(job: Settings, worker: Settings) -> RequestPolicy:
    """How the worker asks for the URLs of a job that was given with other settings, after its way through the log."""
    record = u.decode(u.encode(UrlsRecord(job="j", spec=resolve_spec(job))))
    assert record.spec is not None
    return policy_of(record.spec, own_policy(worker), limits_of(worker))


def test_a_job_is_asked_for_by_its_own_settings() -> None:
    """Whatever the worker's are, but for its limits."""
    job = load(GIVEN, NO_FILE, {})
    policy = met(job, settings())
    assert (policy.rules, policy.token, policy.lacks) == (request_rules(job), "jobbot", frozenset())


@pytest.mark.parametrize("key", GIVEN)
def test_a_worker_has_no_say_in_other_jobs(key: str) -> None:
    """Its own settings of these names are for jobs whose records do not have them."""
    assert met(settings(), load({key: GIVEN[key]}, NO_FILE, {})) == own_policy(settings())


def test_what_a_record_lacks_the_worker_says() -> None:
    """Field by field: `crawlog seed` names what it was given, an old record has none."""
    usual = own_policy(load(GIVEN, NO_FILE, {}))
    spec = msgspec.json.decode(
        b'{"requests": {"delay_s": 4.0, "user_agent": "old/1"}, "token": "oldbot"}', type=JobSpec
    )
    policy = policy_of(spec, usual, WorkerLimits())
    said = {"delay_s": 4.0, "user_agent": "old/1"}
    assert (policy.rules, policy.token) == (msgspec.structs.replace(usual.rules, **said), "oldbot")
    assert policy_of(JobSpec(token="oldbot"), usual, WorkerLimits()) is usual


@pytest.mark.parametrize(
    ("limit", "worker", "wanted", "kept"),
    [
        ("delay_s", {"limits__delay_s": 5.0}, 1.0, 5.0),
        ("delay_s", {"limits__delay_s": 5.0}, 9.0, 9.0),
        ("per_host", {"limits__per_host": 2}, 7, 2),
        ("per_host", {"limits__per_host": 2}, 1, 1),
        ("robots", {"limits__robots": True}, False, True),
        ("attempts", {"limits__attempts": 2}, 8, 2),
        ("timeout_s", {"limits__timeout_s": 10.0}, 30.0, 10.0),
        ("timeout_s", {"limits__timeout_s": 10.0}, 3.0, 3.0),
        ("max_body_bytes", {"limits__max_body_bytes": 2048}, 4096, 2048),
        ("max_body_bytes", {}, 1 << 40, (9 << 20) - RECORD_HEADROOM),
        ("allow_private", {}, True, False),
        ("allow_private", {"network__allow_private": True}, True, True),
        ("allow_private", {"network__allow_private": True}, False, False),
        ("verify_tls", {}, False, True),
        ("verify_tls", {"network__verify_tls": False}, False, False),
        ("verify_tls", {"network__verify_tls": False}, True, True),
        ("min_tls", {"network__min_tls": "1.3"}, "1.2", "1.3"),
        ("min_tls", {}, "1.3", "1.3"),
        ("tls", {}, "modern", "modern"),
        ("tls", {}, "AES128-SHA", "AES128-SHA"),
        ("tls", {"network__tls": "modern"}, "AES128-SHA", "modern"),
        ("tls", {"network__tls": "modern"}, "compatible", "modern"),
    ],
)
def test_the_stricter_one_of_job_and_worker_holds(limit: str, worker: dict[str, Any], wanted: Any, kept: Any) -> None:
    """A body is never larger than the worker's records."""
    spec = JobSpec(requests=msgspec.structs.replace(request_rules(settings()), **{limit: wanted}))
    one = settings(**worker)
    assert getattr(policy_of(spec, own_policy(one), limits_of(one)).rules, limit) == kept


def test_what_a_worker_does_not_do_for_a_job_is_said() -> None:
    """As the settings that it would need; nothing where the job does not want it."""
    wants = settings(network__allow_private=True, network__verify_tls=False)
    assert met(wants, settings()).lacks == {NEEDS_PRIVATE, NEEDS_LAX_TLS}
    assert met(wants, wants).lacks == met(settings(), wants).lacks == met(settings(), settings()).lacks == set()


def test_a_job_given_with_proxies_needs_a_worker_that_has_some() -> None:
    """Which they are stands in no record: they may hold a password."""
    wants = settings(exits__proxies=("http://ann:hush@proxy.test:3128",))
    assert met(wants, settings()).lacks == {NEEDS_PROXIES}
    assert met(wants, wants).lacks == met(settings(), wants).lacks == set()
    assert b"hush" not in u.encode(UrlsRecord(job="j", spec=resolve_spec(wants)))


def test_a_worker_keeps_its_own_requests_within_its_limits() -> None:
    """Those of bare records too."""
    assert own_policy(settings(limits__delay_s=5.0)).rules.delay_s == 5.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"timeout_s": 0},
        {"timeout_s": "1e999"},
        {"chunk_timeout_s": -1},
        {"max_body_bytes": 0},
        {"login_again_s": 1},
        {"logged_out": '["404"]'},
        {"content_types": '"text/html"'},
        {"allow_private": "null"},
        {"min_tls": '"1.0"'},
        {"tls": f'"{"a" * 1001}"'},
        {"render_max_requests": -1},
    ],
)
def test_rules_that_nobody_can_obey_are_no_record(wrong: dict[str, Any]) -> None:
    """A record is checked before it is folded: no worker meets them."""
    world = World()
    fields = ", ".join(f'"{name}": {value}' for name, value in wrong.items())
    assert world.fold.take(f'{{"v": 1, "job": "j", "spec": {{"requests": {{{fields}}}}}}}'.encode(), 0, 0.0).dead
    assert "j" not in world.fold.jobs


@pytest.mark.parametrize(
    ("request_", "limits", "expected"),
    [
        (RequestRecord(), WorkerLimits(), (3, 30.0)),
        (RequestRecord(attempts=1), WorkerLimits(), (1, 30.0)),
        (RequestRecord(attempts=9, timeout_s=90.0), WorkerLimits(), (9, 90.0)),
        (RequestRecord(attempts=9, timeout_s=90.0), WorkerLimits(attempts=2, timeout_s=5.0), (2, 5.0)),
        (RequestRecord(timeout_s=1.0), WorkerLimits(attempts=2, timeout_s=5.0), (2, 1.0)),
    ],
)
def test_a_request_has_its_own_attempts_and_time_within_the_workers_limits(
    request_: RequestRecord, limits: WorkerLimits, expected: tuple[int, float]
) -> None:
    """Longer than the job's too; all else stays the job's."""
    rules = own_policy(Settings()).rules
    kept = policy_for(request_, RequestPolicy(rules), limits).rules
    assert (kept.attempts, kept.timeout_s) == expected
    names = ("attempts", "timeout_s", *SILENCES)
    assert msgspec.structs.replace(kept, **{name: getattr(rules, name) for name in names}) == rules


SILENCES = ("connect_timeout_s", "first_byte_timeout_s", "chunk_timeout_s")


@pytest.mark.parametrize(
    ("timeout_s", "limits", "expected"),
    [
        (0.0, WorkerLimits(), (10.0, 20.0, 15.0)),
        (5.0, WorkerLimits(), (10.0, 20.0, 15.0)),
        (600.0, WorkerLimits(), (600.0, 600.0, 600.0)),
        (600.0, WorkerLimits(timeout_s=60.0), (60.0, 60.0, 60.0)),
        (600.0, WorkerLimits(timeout_s=30.0), (30.0, 30.0, 30.0)),
        (25.0, WorkerLimits(), (25.0, 25.0, 25.0)),
        (18.0, WorkerLimits(), (18.0, 20.0, 18.0)),
    ],
)
def test_silences_within_a_request_last_as_long_as_its_own_time(
    timeout_s: float, limits: WorkerLimits, expected: tuple[float, ...]
) -> None:
    """Else a server that needs as long as the request allows for is given up as the job says."""
    policy = own_policy(Settings())
    kept = policy_for(RequestRecord(attempts=2, timeout_s=timeout_s), policy, limits).rules
    assert tuple(getattr(kept, name) for name in SILENCES) == expected
