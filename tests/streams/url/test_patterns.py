"""The bound on the work of a job's expressions."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from crawlog.schemas.urls import JobSpec, RenderRules, ScopeSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.rendering import Rendering
from crawlog.streams.settings import Settings
from crawlog.streams.url import Scope, any_of, domains_pattern
from crawlog.streams.url.scope import MAX_PROGRAM

COSTLY = ("(?:x|[a-z]?){1000}",) * 30
"""Each is legal and short. Together they took a second a URL."""


def _scope(**rules: tuple[str, ...]) -> object:
    return Scope(JobSpec(scope=ScopeSpec(**rules)))  # type: ignore[arg-type]  # mypy takes them for any field


def _scope_setting(**rules: object) -> object:
    return Settings(scope=rules)  # type: ignore[arg-type]  # a section as it comes from a file


def _render_setting(**rules: object) -> object:
    return Settings(render=rules)  # type: ignore[arg-type]  # a section as it comes from a file


@pytest.mark.parametrize("setting", ["include", "exclude"])
@pytest.mark.parametrize(
    ("use", "error"),
    [
        (_scope, Misconfigured),
        (lambda **rules: Rendering(RenderRules(**rules)), Misconfigured),
        (_scope_setting, ValidationError),
        (_render_setting, ValidationError),
    ],
    ids=["scope-in-a-worker", "render-in-a-worker", "scope-setting", "render-setting"],
)
def test_a_short_expression_with_a_large_program_is_refused(
    use: Callable[..., Any], error: type[Exception], setting: str
) -> None:
    """When its settings are read, and again by each worker that takes the job: any writer of the log can send one."""
    with pytest.raises(error, match=r"(?s)too costly.*instructions.*\{1000\}"):
        use(**{setting: COSTLY})


def test_the_bound_is_on_all_expressions_of_a_setting_together() -> None:
    """Many small ones are one large one."""
    seven = tuple(f"[a-z]{{{number}}}x" for number in range(290, 297))
    any_of("scope.include", seven[:6])
    with pytest.raises(Misconfigured, match=f"scope.include: too costly.*more than {MAX_PROGRAM:,}"):
        any_of("scope.include", seven)


def test_long_lists_of_hosts_are_taken() -> None:
    """`allowed_domains` of five thousand hosts: their program is large, and a URL is at few of its places at a time."""
    hosts = [f"shop-{number}.example" for number in range(5_000)]
    taken = any_of("scope.include", (domains_pattern(hosts),))
    assert taken is not None
    assert taken.search("https://www.shop-4999.example/x")
    assert not taken.search("https://www.shop-5000.example/x")


@pytest.mark.parametrize("name", ["a{900}|b", "(?:[a-z]?){900}", "a\\|(?:[a-z]?){900}", "\\w{900}"])
def test_what_only_looks_like_a_list_of_hosts_is_bounded(name: str) -> None:
    """Its head and its end alone make none."""
    list_of_one = domains_pattern(["a.example"])
    with pytest.raises(Misconfigured, match="too costly"):
        any_of("scope.include", (list_of_one.replace(r"a\.example", name),) * 40)


def test_a_useful_expression_is_taken() -> None:
    """Any character, up to 200 times, is one of the largest that people write."""
    assert any_of("scope.exclude", (r"^https?://[^/]+/.{1,200}\.pdf$",)) is not None
