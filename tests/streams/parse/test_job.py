"""What parse decides of a page by its job, as tables."""

import msgspec
import pytest

from crawlog.agents.parse.guard import Guard
from crawlog.schemas.control import JobCopy as Copy
from crawlog.schemas.control import Join
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import DEFAULT_JOB, MAX_VIA_BYTES, CanonicalRules, JobSpec, ScopeSpec
from crawlog.streams.html.links import Outlink
from crawlog.streams.parse.job import SITEMAP_PRIORITY, Job, Jobs
from crawlog.streams.spiders.page import Parsed
from crawlog.streams.url.canonical import fingerprint
from crawlog.streams.url.place import Places

PLACES = Places(8)
SPEC = JobSpec(scope=ScopeSpec(names=("a.test",)))
PAGE = "http://a.test/p"


def job_of(jobs: Jobs) -> Job:
    """The job."""
    found = jobs.get("j")
    assert found is not None
    return found


def known(spec: JobSpec = SPEC) -> tuple[Jobs, Job]:
    """What crawl.control told, and the one job of it."""
    jobs = Jobs(PLACES, Guard().check)
    jobs.learn(Copy("j", spec))
    return jobs, job_of(jobs)


def outlink(url: str) -> Outlink:
    """A link as `Links` resolves it."""
    return Outlink(url, fingerprint(url), PLACES.of(url))


@pytest.mark.parametrize(
    ("location", "hops", "error"),
    [("http://b.test/", 0, "scope"), ("/q", 10, "scope: redirects"), ("mailto:x@a.test", 0, "bad_url"), ("/q", 0, "")],
)
def test_a_redirect_that_a_rule_refuses_ends_its_request(location: str, hops: int, error: str) -> None:
    """Its errback is told by which rule; where there is none, nobody is."""
    job, request = known()[1], RequestRecord(callback="c", errback="e")
    meta = PageMeta(PAGE, "j", http=302, location=location, hops=hops, request=request)
    ended = job.ended(meta)
    assert (ended.error, ended.location, ended.kept) == (error, "" if error else location, not error)
    meta = msgspec.structs.replace(meta, request=RequestRecord(callback="c"))
    assert job.ended(meta) is meta


@pytest.mark.parametrize(
    ("rules", "url", "location", "is_undone"),
    [
        ({}, PAGE, "/p?utm_source=home", True),
        ({"drop_params": ("x",)}, PAGE, "/p?x=1", True),
        ({"drop_slash": True}, PAGE, "/p/", True),
        ({"drop_www": True}, "http://a.test/", "http://www.a.test/", True),
        ({"drop_sessions": True}, "http://a.test/", "/;jsessionid=AB12CD", True),
        ({"index_files": ("index.html",)}, "http://a.test/", "/index.html", True),
        ({"drop_slash": True}, PAGE, "/q/", False),
        ({}, PAGE, "/q?utm_source=home", False),
        ({}, PAGE, "http://[/", False),
        ({"verbatim": True}, PAGE, "/p?utm_source=home", False),
    ],
)
def test_a_redirect_that_the_canonical_rules_undo_is_a_failure(
    rules: dict[str, object], url: str, location: str, is_undone: bool
) -> None:
    """Its page is never asked for."""
    spec = msgspec.structs.replace(SPEC, canonical=msgspec.convert(rules, CanonicalRules))
    meta = PageMeta(url, "j", http=301, location=location)
    job = known(spec)[1]
    undone = job.undone(meta)
    assert (undone.error.partition(":")[0], undone.location) == (
        ("redirect_undone", "") if is_undone else ("", location)
    )
    asked = PageMeta(url, "j", http=301, location=location, request=RequestRecord(errback="e"), id=fingerprint(url))
    assert job.ended(asked).error.startswith("redirect_undone") is is_undone
    posted = msgspec.structs.replace(asked, http=303, id=7, request=RequestRecord("POST", body=b"x", errback="e"))
    assert job.undone(posted) is posted


FP = {path: fingerprint(f"http://a.test{path}").to_bytes(8, "big") for path in ("/a", "/b", "/c")}


@pytest.mark.parametrize(
    ("path", "via", "location", "leads_back", "is_circle"),
    [
        ("/a", "", "/a", False, True),
        ("/a", "", "/a#top", False, True),
        ("/b", "/a", "/a", False, True),
        ("/c", "/a /b", "/a", False, True),
        ("/c", "/a /b", "/b", False, True),
        ("/b", "/a", "/c", False, False),
        ("/b", "", "/a", False, False),
        ("/b", "/a", "/a", True, False),
        ("/b", "/a /b /a", "/a", True, True),
    ],
)
def test_a_redirect_that_leads_back_is_a_failure(
    path: str, via: str, location: str, leads_back: bool, is_circle: bool
) -> None:
    """To itself, or to a URL that led to it; a check for cookies leads back once."""
    job = known(SPEC)[1]
    chain = b"".join(FP[one] for one in via.split())
    meta = PageMeta(f"http://a.test{path}", "j", http=302, location=location, via=chain, leads_back=leads_back)
    end = job.undone(meta)
    assert end.error == (f"redirect_circle: http://a.test{location.partition('#')[0]} led here" if is_circle else "")
    if not is_circle:
        followed = job.redirect(meta, {})
        assert followed is not None
        assert followed.found.via == chain + FP[path]


def test_what_led_to_a_page_is_bounded() -> None:
    """A record of a stranger may have any chain; no client follows so many redirects."""
    job = known(SPEC)[1]
    followed = job.redirect(PageMeta("http://a.test/a", "j", http=302, location="/b", via=bytes(4096)), {})
    assert followed is not None
    assert len(followed.found.via) == MAX_VIA_BYTES


@pytest.mark.parametrize(
    ("location", "page", "target", "joins"),
    [
        ("/q", {}, "http://a.test/q", ""),
        ("http://b.test/", {}, None, ""),
        ("http://b.test/", {"seed": True}, "http://b.test/", "b.test"),
        ("/q", {"seed": True}, "http://a.test/q", ""),
        ("mailto:x@a.test", {"seed": True}, None, ""),
        ("/q", {"hops": 10}, None, ""),
        ("http://u:p@a.test./q", {}, "http://a.test/q", ""),
    ],
)
def test_where_a_redirect_leads(location: str, page: dict[str, object], target: str | None, joins: str) -> None:
    """Within the scope as deep as before and a hop further; out of it only where a seed leads there."""
    meta = msgspec.convert({"url": PAGE, "job": "j", "http": 301, "depth": 2, "location": location} | page, PageMeta)
    redirect = known()[1].redirect(meta, {})
    if target is None:
        assert redirect is None
        return
    assert redirect is not None
    found = redirect.found
    assert (redirect.link.url, found.url, redirect.joins) == (target, target, joins)
    assert (found.depth, found.hops, found.source, found.parent) == (2, meta.hops + 1, "redirect", PAGE)
    assert found.joins == meta.seed


@pytest.mark.parametrize(("kind", "hops"), [("robots", 0), ("sitemap", 1)])
def test_sitemaps_are_as_deep_as_what_names_them(kind: str, hops: int) -> None:
    """An index in an index is a hop further; those out of scope are not taken."""
    meta = msgspec.convert({"url": "http://a.test/robots.txt", "job": "j", "depth": 3, "kind": kind}, PageMeta)
    named = [outlink("http://a.test/map.xml"), outlink("http://b.test/map.xml")]
    ((link, found),) = known()[1].sitemaps(meta, named, {})
    assert link == named[0]
    assert (found.depth, found.hops, found.source, found.priority) == (3, hops, "sitemap", SITEMAP_PRIORITY)


@pytest.mark.parametrize(
    ("kind", "url", "seed", "name"),
    [
        ("domain", "http://a.test/x", True, None),
        ("domain", "http://www.b.test/x", True, "b.test"),
        ("domain", "http://www.b.test/x", False, None),
        ("any", "http://b.test/x", True, None),
    ],
)
def test_a_page_widens_its_scope_where_it_is_a_seed(kind: str, url: str, seed: bool, name: str | None) -> None:
    """Any other page of a host was fetched because the host had joined: then that is known, and not said again."""
    job = known(msgspec.structs.replace(SPEC, scope=msgspec.structs.replace(SPEC.scope, kind=kind)))[1]
    assert job.joining(PageMeta(url, "j", seed=seed)) == name
    if kind == "domain" and not seed:
        assert job.refusal(outlink("http://b.test/other"), 1) is None


@pytest.mark.parametrize(
    ("page", "source", "joins"),
    [
        ({}, "link", False),
        ({"seed": True}, "seed", False),
        ({"seed": True, "hops": 1}, "redirect", True),
        ({"kind": "sitemap"}, "sitemap", False),
    ],
)
def test_a_page_that_is_fetched_again_is_what_it_was(page: dict[str, object], source: str, joins: bool) -> None:
    """A seed stays one, with the scope that it widens."""
    meta = msgspec.convert({"url": PAGE, "job": "j", "depth": 1} | page, PageMeta)
    link, found = known()[1].again(meta)
    assert (link.url, found.url, found.again) == (PAGE, PAGE, "not_modified")
    assert (found.source, found.joins, found.depth, found.hops) == (source, joins, 1, meta.hops)


def test_the_newest_revision_counts_whatever_comes_first() -> None:
    """After a compaction records come in any order."""
    jobs, job = known(msgspec.structs.replace(SPEC, rev=2))
    told = jobs.learn(Copy("j", SPEC))
    assert told is not None
    assert (told.job, told.error) == ("j", None)
    assert jobs.get("j") is job
    jobs.learn(Copy("j", msgspec.structs.replace(SPEC, rev=3)))
    assert job_of(jobs).spec.rev == 3
    assert jobs.get("nobody's") is None
    assert jobs.get(DEFAULT_JOB) is not None


def test_a_revision_that_cannot_be_used_says_why_for_itself_and_older_ones() -> None:
    """A later one may mend it, so its pages wait."""
    jobs = Jobs(PLACES, Guard().check)
    told = jobs.learn(Copy("j", JobSpec(rev=2, scope=ScopeSpec(exclude=("(",)))))
    assert told is not None
    assert "scope.exclude" in str(told.error)
    faults = [jobs.fault(PageMeta(PAGE, "j", rev=rev)) for rev in (1, 2, 3)]
    assert [fault is not None for fault in faults] == [True, True, False]


def test_names_that_joined_a_scope_outlive_a_revision() -> None:
    """They stand in crawl.control beside the job's record, and may be read before it."""
    jobs = Jobs(PLACES, Guard().check)
    assert jobs.learn(Join("j", "a1.test", ("b.test",))) is None
    for rev in (1, 2):
        jobs.learn(Copy("j", msgspec.structs.replace(SPEC, rev=rev)))
        assert job_of(jobs).refusal(outlink("http://b.test/"), 1) is None
        assert job_of(jobs).refusal(outlink("http://c.test/"), 1) == "scope"


def test_pages_of_a_deleted_job_are_not_those_of_the_next_one_of_its_name() -> None:
    """Compaction leaves the next one's copy alone."""
    jobs = Jobs(PLACES, Guard().check)
    jobs.learn(Copy("j", SPEC, 3, after=1))
    assert [jobs.of(PageMeta(PAGE, "j", epoch=epoch)) is None for epoch in (0, 1, 2, 3)] == [True, True, False, False]
    jobs.learn(Copy("j", SPEC, 4))
    assert jobs.is_deleted(PageMeta(PAGE, "j", epoch=1))


def test_what_nobody_parses_gives_nothing() -> None:
    """A sitemap is no page for the HTML parser, and an empty one lists nothing."""
    job = known()[1]
    meta = PageMeta("http://a.test/map.xml", "j", http=200, kind="sitemap")
    assert not job.may_parse(meta)
    parsed = job.parsed(meta, b"")
    assert isinstance(parsed, Parsed)
    assert parsed.outlinks == []
