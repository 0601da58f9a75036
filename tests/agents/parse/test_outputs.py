"""What a page gives, on its way to the log: rows, founds, what joins a scope, dead letters."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from crawlog.schemas import control, items, pages, urls
from crawlog.schemas.control import JobCopy, Join
from crawlog.schemas.urls import MAX_BATCH_URLS, JobSpec, ScopeSpec
from crawlog.streams.errors import GiveUp
from crawlog.streams.parse import founds, job, outputs
from crawlog.streams.url import fingerprint
from crawlog.streams.url.place import partition_of
from tests.support.dying import dying
from tests.support.parsing import NAMES, PAGE, Message, Stage, links, spider_job


def test_a_page_gives_a_row_with_all_its_keys() -> None:
    """As users read it."""
    stage = Stage()
    body = b"<title>T</title><a href=x><a href=http://other.test/>"
    stage.take(body, depth=2, fetched_at=1.5)
    assert stage.row() == {
        "url": PAGE,
        "status": 200,
        "error": None,
        "title": "T",
        "depth": 2,
        "links": 2,
        "fetched_at": 1.5,
        "sha256": hashlib.sha256(body).hexdigest(),
    }


@pytest.mark.parametrize(
    ("digest", "fields"),
    [
        ("sha256", {"sha256": hashlib.sha256(b"<p>x").hexdigest()}),
        ("blake3", {"blake3": blake3(b"<p>x").hexdigest()}),
        ("none", {}),
    ],
)
def test_a_row_has_the_digest_that_its_job_asks_for(digest: Any, fields: dict[str, str]) -> None:
    """Under its own name, null without a body; the other keys are the same."""
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), digest=digest))
    stage.take(b"<p>x")
    row = stage.row()
    assert {key: row[key] for key in row if key in ("sha256", "blake3")} == fields
    assert len(row) == 7 + len(fields)
    empty = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), digest=digest))
    empty.take(b"", http=503)
    assert {key: empty.row().get(key) for key in fields} == dict.fromkeys(fields)


@pytest.mark.parametrize(
    ("meta", "body", "row"),
    [
        ({"http": 404}, b"<title>no</title><a href=x>", {"status": 404, "title": "no", "links": 1}),
        ({"http": 503}, b"", {"status": 503, "title": None, "links": 0, "sha256": None}),
        (
            {"http": None, "error": "timeout", "content_type": ""},
            b"",
            {"status": None, "error": "timeout", "sha256": None},
        ),
        ({"content_type": "application/pdf", "kept": False}, b"", {"status": 200, "title": None, "links": 0}),
        ({"content_type": "text/plain"}, b"<title>x</title><a href=x>", {"title": None, "links": 0}),
        ({"content_type": ""}, b"<title>x</title>", {"title": "x"}),
    ],
)
def test_what_is_no_page_gives_a_row_too(meta: dict[str, Any], body: bytes, row: dict[str, Any]) -> None:
    """Errors, failures and other types; none of them leads anywhere."""
    stage = Stage()
    stage.take(body, **meta)
    stage.stage.flush()
    assert stage.row().items() >= row.items()
    assert stage.founds() == []


def dropped(stage: Stage) -> list[dict[str, int]]:
    """What the records of crawl.urls tell of links that were not sent."""
    return [urls.decode(value).dropped for value in stage.log.values(NAMES.urls)]


def total(stage: Stage) -> Counter[str]:
    """The sums of what `dropped` has."""
    return sum(map(Counter, dropped(stage)), Counter())


def test_links_that_are_not_sent_are_counted_by_rule_in_the_log() -> None:
    """Beside the links that are sent, so that they cost no record; the page waits for it."""
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",), exclude=("/no",))))
    offset = stage.take(links("x", "/no/1", "http://b.test/1", "http://b.test/2"))
    stage.stage.flush()
    assert dropped(stage) == [{"exclude": 1, "scope": 2}]
    assert [found.url for found in stage.founds()] == ["http://a.test/x"]
    stage.log.acknowledge(NAMES.items)
    assert stage.done == []
    stage.log.acknowledge(NAMES.urls)
    assert stage.done == [(3, offset + 1)]


def test_links_to_a_name_that_joins_are_sent_from_then_on() -> None:
    """A seed's page adds its own name; until another one joins, links to it are counted by the scope."""
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",))))
    body = links("http://b.test/x", "http://www.b.test/y", "http://c.test/")
    stage.take(body)
    stage.take(body, url="http://b.test/", seed=True)
    stage.stage.flush()
    assert total(stage) == {"scope": 4}
    assert [found.url for found in stage.founds()] == ["http://b.test/x", "http://www.b.test/y"]


def test_counts_of_many_pages_without_a_link_to_send_are_one_record() -> None:
    """At the depth limit no page has one."""
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), max_depth=2))
    for page in range(3):
        stage.take(links(f"{page}", "http://b.test/"), url=f"{PAGE}{page}", depth=2)
    stage.stage.flush()
    assert dropped(stage) == [{"depth": 6}]
    assert stage.founds() == []
    stage.log.acknowledge()
    assert stage.done[-1] == (3, 3)


def test_a_redirect_and_a_sitemap_that_are_not_followed_are_counted_too() -> None:
    """They are links as others are."""
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), sitemaps=True))
    stage.take(http=302, location="http://b.test/")
    named = b"http://b.test/map.xml"
    stage.take(named, url="http://a.test/robots.txt", kind="robots", content_type="text/plain")
    stage.stage.flush()
    assert dropped(stage) == [{"scope": 2}]


def test_links_in_scope_are_found_one_level_deeper() -> None:
    """One record per partition, keyed by the domain that all its URLs share."""
    stage = Stage()
    stage.take(links("x", "http://sub.a.test/y", "http://other.test/"), depth=1)
    stage.stage.flush()
    (record,) = [record for record in stage.log.records if record.topic == NAMES.urls]
    assert (record.key, record.partition) == (b"a.test", partition_of("a.test", 8))
    assert [(found.url, found.depth, found.source, found.parent) for found in stage.founds()] == [
        ("http://a.test/x", 2, "link", PAGE),
        ("http://sub.a.test/y", 2, "link", PAGE),
    ]


def test_a_login_in_a_link_and_the_roots_dot_name_no_other_page() -> None:
    """However many users a page names, by a `base` too: it gives nobody a login, and its links are one URL."""
    stage = Stage()
    stage.take(links("/x", *(f"http://u{n}:pw@a.test/x" for n in range(9)), "//a.test./x"))
    stage.take(b"<base href='http://u:pw@a.test./d/'>" + links("y", "/z"))
    stage.stage.flush()
    assert [found.url for found in stage.founds()] == ["http://a.test/x", "http://a.test/d/y", "http://a.test/z"]


def test_a_batch_over_two_domains_has_no_key() -> None:
    """Only its partition."""
    twins = [n for n in range(200) if partition_of(f"d{n}.test", 8) == 0][:2]
    stage = Stage(job=JobSpec(scope=ScopeSpec(kind="any")))
    stage.take(links(*(f"http://d{n}.test/" for n in twins)))
    stage.stage.flush()
    assert [(r.key, r.partition) for r in stage.log.records if r.topic == NAMES.urls] == [(None, 0)]


def test_a_link_is_sent_once_and_both_pages_wait_for_it() -> None:
    """While it is on its way it is not known yet, and not sent again either."""
    stage = Stage()
    stage.take(links("x"))
    stage.stage.flush()
    stage.take(links("x"))
    stage.log.acknowledge(NAMES.items)
    assert stage.done == []
    stage.log.acknowledge(NAMES.urls)
    assert stage.done[-1] == (3, 2)
    stage.take(links("x"))
    stage.stage.flush()
    assert len(stage.founds()) == 1


def test_a_shallower_link_is_always_sent() -> None:
    """With a depth limit it opens more of the site."""
    stage = Stage()
    for depth in (5, 5, 2, 3):
        stage.take(links("x"), depth=depth)
        stage.stage.flush()
        stage.log.acknowledge()
    assert [found.depth for found in stage.founds()] == [6, 3]


def test_a_new_revision_and_a_new_epoch_send_links_again() -> None:
    """What was known under other rules says nothing."""
    stage = Stage()
    for rev, epoch in ((1, 0), (1, 1), (2, 1)):
        stage.learn(JobSpec(rev=rev, scope=ScopeSpec(names=("a.test",))), epoch)
        stage.take(links("x"), rev=rev, epoch=epoch)
        stage.stage.flush()
        stage.log.acknowledge()
    assert len(stage.founds()) == 3


def test_a_full_batch_is_sent_at_once() -> None:
    """At most 500 URLs; the rest gathers on."""
    stage = Stage()
    stage.take(links(*(f"x{n}" for n in range(MAX_BATCH_URLS + 1))))
    assert [len(urls.decode(value).urls or ()) for value in stage.log.values(NAMES.urls)] == [MAX_BATCH_URLS]
    stage.stage.flush()
    assert len(stage.founds()) == MAX_BATCH_URLS + 1


FROM_PAGE = fingerprint(PAGE).to_bytes(8, "big")


def test_a_redirect_gives_no_row_and_one_found() -> None:
    """Of the same depth, with one hop more."""
    stage = Stage()
    stage.take(b"moved", http=301, location="/y#f", depth=2, hops=1)
    stage.stage.flush()
    assert items.decode(stage.log.values(NAMES.items)[0]).items == []
    assert stage.founds() == [urls.FoundUrl("http://a.test/y", 2, 0, "redirect", PAGE, 2, via=FROM_PAGE)]


def test_a_redirect_that_canonical_rules_undo_gives_a_row_that_says_so() -> None:
    """A browser comes to a page there, so its URL ends with a result."""
    stage = Stage()
    stage.take(b"", http=301, location="/p?utm_source=x")
    stage.stage.flush()
    row = stage.row()
    assert (row["status"], row["error"].partition(":")[0]) == (301, "redirect_undone")
    assert "http://a.test/p?utm_source=x" in row["error"]
    assert stage.founds() == []


@pytest.mark.parametrize(("location", "via"), [("/p", b""), ("/x", fingerprint("http://a.test/x").to_bytes(8, "big"))])
def test_a_circle_of_redirects_gives_a_row_that_says_so(location: str, via: bytes) -> None:
    """To itself, and by way of another URL: nothing else would ever be known of it."""
    stage = Stage()
    stage.take(b"", http=302, location=location, via=via)
    stage.stage.flush()
    row = stage.row()
    assert (row["status"], row["error"]) == (302, f"redirect_circle: http://a.test{location} led here")
    assert stage.founds() == []


def test_a_redirect_that_leads_back_has_its_target_asked_once_more() -> None:
    """With the cookie that came on the way it may be a page."""
    stage = Stage()
    stage.take(b"", http=302, location="/y", leads_back=True)
    stage.stage.flush()
    assert [(found.url, found.checked) for found in stage.founds()] == [("http://a.test/y", True)]


@pytest.mark.parametrize(
    "location",
    ["http://[/", "ftp://a.test/", "http://other.test/", "file:///etc/passwd", "data:text/html,<a href=/x>x"],
)
def test_a_redirect_to_nowhere_is_the_end(location: str) -> None:
    """GHSA-23j4-mw76-5v7h: no URL, no http, or out of scope."""
    stage = Stage()
    stage.take(b"", http=302, location=location)
    stage.stage.flush()
    stage.log.acknowledge()
    assert stage.founds() == []
    assert stage.done == [(3, 1)]


def test_where_a_seed_leads_joins_the_scope() -> None:
    """Said in crawl.control, before the page is done; links there are then taken."""
    stage = Stage()
    stage.take(b"", http=301, location="http://www.other.test/", seed=True)
    stage.stage.flush()
    assert [(found.url, found.joins) for found in stage.founds()] == [("http://www.other.test/", True)]
    (join,) = [record for record in stage.log.records if record.topic == NAMES.control]
    assert control.decode(join.key, join.value) == Join("j", "other.test")
    stage.log.acknowledge(NAMES.items, NAMES.urls)
    assert stage.done == []
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]
    stage.take(links("http://other.test/z"))
    stage.stage.flush()
    assert stage.founds()[-1].url == "http://other.test/z"


def test_a_join_that_another_worker_wrote_counts() -> None:
    """Before the job's record too: they come in any order after a compaction."""
    stage = Stage()
    stage.stage.learn(Join("k", "other.test"))
    stage.stage.learn(JobCopy("k", JobSpec(scope=ScopeSpec(names=("a.test",)))))
    stage.take(links("http://other.test/z"), job="k")
    stage.stage.flush()
    assert [found.url for found in stage.founds()] == ["http://other.test/z"]


def test_a_record_that_is_no_page_goes_to_the_dead_letters() -> None:
    """As it was, with its headers; then it is done."""
    stage = Stage()
    stage.stage.take(Message(3, 0, b"k", b"body", [("other", b"1"), (pages.HEADER, b"{")]))
    assert stage.done == []
    (record,) = stage.log.records
    assert (record.topic, record.key, record.value) == (NAMES.dead, b"k", b"body")
    assert {"other": b"1", "stage": b"parse", "offset": b"0", pages.HEADER: b"{"}.items() <= dict(
        record.headers
    ).items()
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_a_page_whose_worker_died_before_its_dead_letter_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not done, so the next worker begins with it."""
    page = Message(3, 0, b"k", b"body", [(pages.HEADER, b"{")])
    stage = Stage()
    with dying(monkeypatch, "parse.dead.sending", 1):
        stage.stage.take(page)
    assert (stage.log.records, stage.done) == ([], [])
    stage = Stage()
    stage.stage.take(page)
    stage.log.acknowledge()
    assert (stage.log.values(NAMES.dead), stage.done) == ([b"body"], [(3, 1)])


def test_a_dead_letter_too_large_for_a_record_names_its_page() -> None:
    """Its body stays in crawl.pages, where the headers point."""
    stage = Stage(largest=1000)
    stage.stage.take(Message(3, 0, None, b"x" * 2000, []))
    assert stage.log.values(NAMES.dead) == [None]
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_a_spiders_items_and_requests_leave_together(tmp_path: Path) -> None:
    """With its name and version, one level deeper, with the priority asked for."""
    parse = (
        "yield {'a': 1}\nyield response.follow('/x', priority=3)\nyield Request('http://other.test/')\nyield {'b': [2]}"
    )
    stage = Stage(job=spider_job(tmp_path, parse))
    stage.take(b"", depth=4)
    stage.stage.flush()
    record = items.decode(stage.log.values(NAMES.items)[0])
    assert ([json.loads(bytes(item)) for item in record.items], record.spider) == ([{"a": 1}, {"b": [2]}], "S@7")
    assert stage.founds() == [urls.FoundUrl("http://a.test/x", 5, 3, "link", PAGE)]


def test_a_page_that_fails_half_way_gives_nothing(tmp_path: Path) -> None:
    """Neither the items before the failure nor the links; its dead letter says where it failed."""
    parse = "yield {'a': 1}\nyield response.follow('/x')\nif response.depth:\n    raise ValueError('half')"
    stage = Stage(job=spider_job(tmp_path, parse))
    stage.take(b"body", depth=1)
    stage.stage.flush()
    (letter,) = stage.log.records
    headers = dict(letter.headers)
    assert (letter.topic, letter.value, headers["error"]) == (NAMES.dead, b"body", b"ValueError: half")
    assert (headers["stage"], headers["job"], headers["offset"], headers["partition"]) == (b"parse", b"j", b"0", b"3")
    assert b"s.py" in headers["traceback"]
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


SEED: dict[str, Any] = {"url": "http://b.test/", "seed": True}
"""Its name joins the scope, so that it gives an item, a record of crawl.control, founds and counts."""


def broken(*_: Any, **__: Any) -> Any:
    """Whatever decides or encodes an output."""
    raise ValueError("half")


@pytest.mark.parametrize(
    "name",
    ["items.key", "items.encode", "control.key", "control.encode"]
    + [f"Job.{name}" for name in ("joining", "sent", "refusal", "sitemaps", "redirect")]
    + ["Sent.unsent", "FoundUrl", "Outlink"],
)
def test_an_error_while_an_output_is_decided_or_encoded_leaves_nothing_sent(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """But the dead letter; the names do not join, and the links do not count as sent."""
    spec = JobSpec(scope=ScopeSpec(names=("a.test",)), sitemaps=True)
    meta: dict[str, Any] = SEED
    if name == "Job.sitemaps":
        meta = {"url": "http://a.test/robots.txt", "kind": "robots", "content_type": "text/plain"}
    elif name in ("Job.redirect", "Outlink"):
        meta = SEED | {"http": 302, "location": "/y"}
    body = b"http://a.test/map.xml" if "kind" in meta else links("x", "http://other.test/")
    stage = Stage(job=spec)
    owner, _, attribute = name.rpartition(".")
    owners = {"items": items, "control": control, "Job": job.Job, "Sent": founds.Sent, "": outputs}
    with monkeypatch.context() as patch:
        patch.setattr(job if name == "Outlink" else owners[owner], attribute, broken)
        stage.take(body, **meta)
        stage.stage.flush()
    assert [record.topic for record in stage.log.records] == [NAMES.dead]
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]
    stage.take(body, **meta)
    stage.stage.flush()
    stage.log.acknowledge()
    again = [record.topic for record in stage.log.records[1:]]
    assert again == ([] if "kind" in meta else [NAMES.items, NAMES.control]) + [NAMES.urls]
    assert stage.done[-1] == (3, 2)


@pytest.mark.parametrize("topic", [NAMES.items, NAMES.control])
def test_a_page_of_which_an_output_cannot_be_sent_is_buried(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """With what was sent before it; it is done once the log has both."""
    stage = Stage()
    send = stage.log.send

    def refuses(to: str, value: bytes | None, **more: Any) -> None:
        if to == topic:
            raise GiveUp("too_large")
        send(to, value, **more)

    monkeypatch.setattr(stage.stage._outputs, "_send", refuses)
    monkeypatch.setattr(stage.stage._outputs, "_send_item", refuses)
    stage.take(links("x"), **SEED)
    stage.stage.flush()
    before = [NAMES.items] if topic == NAMES.control else []
    assert [record.topic for record in stage.log.records] == [*before, NAMES.dead]
    stage.log.acknowledge(NAMES.dead)
    assert stage.done == ([] if before else [(3, 1)])
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]
