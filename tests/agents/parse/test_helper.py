"""A helper finds in a page what the page's owner finds, or gives it back."""

import gzip

import msgspec
import pytest

from crawlog.agents.parse import helper as helper_module
from crawlog.agents.parse.helper import AskedPages, Helper
from crawlog.agents.parse.lending import _parsed
from crawlog.schemas import pages
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.html import Outlink
from crawlog.streams.parse import Job
from crawlog.streams.spiders import Parsed
from crawlog.streams.url import Names, Places
from tests.support.parsing import HTML, PAGE, links

SPEC = JobSpec(scope=ScopeSpec(names=("a.test",)))
ROOM = 1 << 20


def job_of(spec: JobSpec = SPEC) -> Job:
    """A job as its owner has it."""
    return Job("j", spec, Places(8), Names())


def meta_of(**fields: object) -> PageMeta:
    """The metadata of a page."""
    return msgspec.structs.replace(PageMeta(url=PAGE, job="j", http=200, content_type=HTML), **fields)


def asked(*bodies: bytes, spec: JobSpec | None = SPEC, coding: str = "", **fields: object) -> AskedPages:
    """A batch of pages, over the wire."""
    records = [(list(pages.headers(meta_of(**fields), coding)), body) for body in bodies]
    return msgspec.msgpack.decode(msgspec.msgpack.encode(AskedPages("j", spec, False, records)), type=AskedPages)


def held(job: Job, helper: Helper, batch: AskedPages, table: list[Outlink], **fields: object) -> list[Parsed | None]:
    """What an owner reads in a helper's answer."""
    answer = helper.answer(batch)
    table.extend(job.outlink(url) for url in answer.urls.split("\n") if url)
    return [None if one is None else _parsed(job, meta_of(**fields), one, table) for one in answer.pages]


BODIES = (
    b"",
    b"<title> One\n page </title><a href=x>1<a href=/y?z=1#f>2<a href=x>1",
    b"<base href=//b.test/dir/><a href=in><a href=http://a.test/out>",
    b"<a href=//b.test/1><a href=http://c.test/2><a href=//b.test/1><a href=3>",
    b"<a href=mailto:x@y><a href='javascript:0'><a href=''><a href='%zz'>",
    "<meta charset=windows-1251><title>Я</title><a href='?q=я'>".encode("cp1251"),
)


@pytest.mark.parametrize("coding", ["", "gzip"])
@pytest.mark.parametrize("body", BODIES)
def test_a_helper_finds_what_the_owner_finds(body: bytes, coding: str) -> None:
    """Row, links in their order, foreign links: with the first answer, and with one whose links it has sent before."""
    sent = gzip.compress(body, mtime=0) if coding and body else body
    helper, owner, table = Helper(8, ROOM), job_of(), list[Outlink]()
    expected = job_of().parsed(meta_of(), body)
    for spec in (SPEC, None):
        [found] = held(owner, helper, asked(sent, spec=spec, coding=coding), table)
        assert found == expected


def test_a_name_that_joined_the_scope_holds_for_the_links_that_a_helper_finds() -> None:
    """A helper knows no such names, and takes these links for foreign."""
    helper, owner = Helper(8, ROOM), job_of()
    owner.joined.add("b.test")
    [found] = held(owner, helper, asked(b"<a href=//b.test/1><a href=//c.test/2>"), [])
    assert found is not None
    assert [link.url for link in found.outlinks] == ["http://b.test/1"]
    assert list(found.foreign) == ["http://c.test/2"]


def test_a_page_of_a_name_that_joined_has_its_links_in_the_scope() -> None:
    """A page that was fetched for a job is in its scope."""
    [found] = held(job_of(), Helper(8, ROOM), asked(links("x"), url="http://b.test/"), [], url="http://b.test/")
    assert found is not None
    assert [link.url for link in found.outlinks] == ["http://b.test/x"]


@pytest.mark.parametrize(
    ("body", "coding"),
    [(b"<p>" * 30_000, ""), (b"no gzip", "gzip"), (gzip.compress(b"x" * (ROOM + 1)), "gzip")],
    ids=["too_complex", "broken", "large"],
)
def test_what_needs_the_owner_comes_back_and_the_next_page_is_parsed(body: bytes, coding: str) -> None:
    """The owner has trials, limits and dead letters."""
    plain = gzip.compress(b"<title>t") if coding else b"<title>t"
    answer = Helper(8, ROOM).answer(asked(body, plain, coding=coding))
    assert [one is None for one in answer.pages] == [True, False]


def test_a_page_that_raises_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner tries it again, and buries it."""

    def fail(*_: object) -> Parsed:
        raise MemoryError

    monkeypatch.setattr("crawlog.streams.parse.job.parse_page", fail)
    assert Helper(8, ROOM).answer(asked(b"x")).pages == [None]


def test_a_helper_uses_the_newest_revision_that_it_was_told() -> None:
    """Also after it has forgotten the jobs that it knew."""
    helper = Helper(8, ROOM)
    helper.answer(asked(b"x"))
    wide = JobSpec(scope=ScopeSpec(kind="any"))
    answer = helper.answer(msgspec.structs.replace(asked(links("//b.test/"), spec=wide), forgets=True))
    assert answer.urls == "http://b.test/"


def test_the_links_of_both_sides_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site has millions of links; both sides empty their table before the same batch."""
    monkeypatch.setattr(helper_module, "MAX_LINKS", 3)
    helper = Helper(8, ROOM)
    assert helper.answer(asked(links("1", "2", "3"))).urls.count("\n") == 2
    assert helper.answer(asked(links("4", "1"), spec=None)).urls == "http://a.test/4\nhttp://a.test/1"
