"""Which URLs a job takes, and by which rule it refuses the others."""

import random
from collections import Counter

import pytest

from crawlog.schemas.urls import JobSpec, ScopeSpec, TrapRules
from crawlog.streams.errors import Misconfigured
from crawlog.streams.url.place import Places
from crawlog.streams.url.scope import Names, Scope, scope_name, trap

PLACES = Places(8)


def refusal(url: str, spec: JobSpec, depth: int = 0, hops: int = 0, joined: tuple[str, ...] = ()) -> str | None:
    """The rule that refuses a URL."""
    return Scope(spec).refusal(url, PLACES.of(url), depth, hops, joined)


def spec_of(kind: str = "any", *names: str, **fields: object) -> JobSpec:
    """A job with a scope."""
    rules = {name: fields.pop(name) for name in ("include", "exclude") if name in fields}
    return JobSpec(scope=ScopeSpec(kind=kind, names=names, **rules), **fields)  # type: ignore[arg-type]  # the records' own fields


@pytest.mark.parametrize(
    ("kind", "url", "name"),
    [
        ("domain", "https://www.example.co.uk:81/", "example.co.uk"),
        ("host", "https://www.example.co.uk/", "www.example.co.uk"),
        ("host", "http://www.example.co.uk/", "www.example.co.uk"),
        ("seeds", "http://www.example.co.uk:8080/", "www.example.co.uk:8080"),
        ("host", "http://[::1]:81/", "[::1]:81"),
        ("host", "http://[::1]/", "[::1]"),
    ],
)
def test_a_scope_name_writes_no_default_port(kind: str, url: str, name: str) -> None:
    """Http and https of one host are one name."""
    assert scope_name(kind, PLACES.of(url)) == name


@pytest.mark.parametrize(
    ("url", "spec", "rule"),
    [
        ("http://www.a.com/", spec_of("domain", "a.com"), None),
        ("http://www.b.com/", spec_of("domain", "a.com"), "scope"),
        ("http://www.a.com/", spec_of("host", "a.com"), "scope"),
        ("https://a.com/", spec_of("host", "a.com"), None),
        ("https://a.com:81/", spec_of("seeds", "a.com"), "scope"),
        ("https://a.com:81/", spec_of("seeds", "a.com:81"), None),
        ("http://anything.example/", spec_of("any"), None),
        ("http://a.com/private/x", spec_of(exclude=("/private/",)), "exclude"),
        ("http://a.com/x", spec_of(include=(r"/docs/", r"\.pdf$")), "include"),
        ("http://a.com/x.pdf", spec_of(include=(r"/docs/", r"\.pdf$")), None),
        ("http://a.com/docs/private/", spec_of(include=("/docs/",), exclude=("private",)), "exclude"),
        ("http://a.com/12345", spec_of(max_url_length=17), "url_length"),
        ("http://a.com/1234", spec_of(max_url_length=17), None),
        ("http://a.com/" + "x" * 8_179, spec_of(max_url_length=65_536), None),
        ("http://a.com/" + "x" * 8_180, spec_of(max_url_length=65_536), "url_length"),
    ],
)
def test_the_first_rule_that_refuses_is_named(url: str, spec: JobSpec, rule: str | None) -> None:
    """By scope, expressions and length."""
    assert refusal(url, spec) == rule


@pytest.mark.parametrize(("depth", "hops", "rule"), [(2, 3, None), (3, 3, "depth"), (2, 4, "redirects")])
def test_depth_and_redirects_have_limits(depth: int, hops: int, rule: str | None) -> None:
    """The limit itself is still taken."""
    assert refusal("http://a.com/", spec_of(max_depth=2, max_redirects=3), depth, hops) == rule


def test_names_are_those_that_were_added_and_no_others() -> None:
    """However many, in whatever order, and each counts once; they take ten bytes each."""
    names, some = Names(), [f"n{number}.test" for number in range(0, 20_000, 2)]
    random.Random(1).shuffle(some)
    for number, name in enumerate(some):
        assert name not in names
        names.add(name)
        names.add(some[number // 2])
    assert len(names) == len(some)
    assert all(name in names for name in some)
    assert not any(f"n{number}.test" in names for number in range(1, 20_000, 2))


def test_a_name_that_joined_is_in_scope() -> None:
    """As if it had been a seed's."""
    assert refusal("http://b.com/", spec_of("domain", "a.com"), joined=("b.com",)) is None


NAMES = ("a.com", "b.co.uk", "w.a.com", "a.com:81", "[::1]", "1.2.3.4", "localhost", "x.github.io", "co.uk", "")
HOSTS = (
    "a.com",
    "w.a.com",
    "aa.com",
    "a.com.",
    "a.com..",
    "w.b.co.uk",
    "co.uk",
    "[::1]",
    "1.2.3.4",
    "localhost",
    "i.io",
)


@pytest.mark.parametrize("kind", ["domain", "host", "seeds", "any"])
@pytest.mark.parametrize("authority", [*HOSTS, *(f"{host}:81" for host in HOSTS), "u.x.github.io", "w.a.com:443"])
def test_an_origin_is_foreign_only_where_each_of_its_urls_is_refused(kind: str, authority: str) -> None:
    """For each of the names, listed or joined; and an ordinary host of another domain is foreign."""
    for name in NAMES:
        for spec, joined in ((spec_of(kind, name), ()), (spec_of(kind), (name,))):
            is_foreign = Scope(spec).is_foreign(f"http://{authority}", joined)
            refused = refusal(f"http://{authority}/", spec, joined=joined)
            assert not is_foreign or refused == "scope"
            assert is_foreign or kind == "any" or authority != "aa.com"


def test_foreign_links_are_counted_by_the_first_rule_that_refuses_them() -> None:
    """As `refusal` names it: length, then depth, then the scope."""
    urls = ["http://b.com/", "http://b.com/" + "x" * 100]
    for depth in (1, 2):
        spec = spec_of("domain", "a.com", max_url_length=50, max_depth=1)
        wanted = Counter(refusal(url, spec, depth) for url in urls)
        assert dict(Scope(spec).foreign_rules(urls, depth)) == wanted


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://a.com/x/y/x/y/x/y/", None),
        ("http://a.com/x/y/x/y/x/y/x", "trap_path"),
        ("http://a.com" + "".join(f"/{n}" for n in range(40)), None),
        ("http://a.com" + "".join(f"/{n}" for n in range(41)), "trap_path"),
        ("http://a.com/?" + "&".join(f"a{n}" for n in range(40)), None),
        ("http://a.com/?" + "&".join(f"a{n}" for n in range(41)), "trap_params"),
        ("http://a.com/?q=/x/x/x/x/x/x", None),
        ("http://a.com//////x", "trap_path"),
    ],
)
def test_a_trap_is_a_path_that_repeats_or_grows(url: str, rule: str | None) -> None:
    """Four times the same segment, too many segments, too many parameters."""
    assert trap(url, TrapRules()) == rule


def test_a_wrong_expression_names_its_setting() -> None:
    """RE2 has no look-ahead: it answers in linear time."""
    with pytest.raises(Misconfigured, match=r"scope.exclude: '\(\?=x\)'"):
        Scope(spec_of(exclude=("(?=x)",)))
