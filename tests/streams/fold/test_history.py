"""The life of one URL: what the fold says of it is what is told, and nothing that concerns it is left out."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import urls as u
from crawlog.schemas.pages import PageMeta
from crawlog.streams.fold.explained import acting
from crawlog.streams.fold.history import Event, History
from crawlog.streams.fold.watched import DomainPrefilter
from crawlog.streams.url.place import Places

PLACES = Places(1)
URL = "http://a.example/x"
AT = 1_700_000_000.0


def job(name: str = "j", epoch: int = 0, **changes: Any) -> bytes:
    """A job record, of any scope but for these changes."""
    return u.encode(
        u.UrlsRecord(job=name, epoch=epoch, spec=u.JobSpec(**{"scope": u.ScopeSpec(kind="any"), **changes}))
    )


def found(*urls: str, job: str | None = "j", **fields: Any) -> bytes:
    """A found of URLs that share their other fields."""
    return u.encode(u.UrlsRecord(job=job, urls=[u.FoundUrl(url, **fields) for url in urls]))


def done(url: str, row: int, status: u.Status = "fetched", job: str = "j", epoch: int = 0, **fields: Any) -> bytes:
    """A done of one URL."""
    return u.encode(u.UrlsRecord(job=job, epoch=epoch, results=[u.Result(url, row, status, **fields)]))


def history(*records: bytes, url: str = URL, only: str = "", places: Places = PLACES) -> History:
    """A URL's history over a log of these records, one second apart."""
    told = History(url, places, only)
    while not all(
        not told.prefilter.may_concern(record) or told.take(record, offset, AT + offset)
        for offset, record in enumerate(records)
    ):
        pass
    return told


def told(events: list[Event], kind: str) -> list[str]:
    """What is said of one kind of event."""
    return [event.what for event in events if event.kind == kind]


@pytest.mark.parametrize(
    ("spec", "records", "says"),
    [
        ({}, [found(URL)], "found as a seed, depth 0 → queued"),
        ({}, [found(URL), found(URL, depth=1, source="link", parent="http://a.example/")],
         "found by link on http://a.example/, depth 1 → known already"),
        ({}, [found("HTTP://A.example:80/x?utm_source=y#z")],
         "found as a seed, depth 0, spelled HTTP://A.example:80/x?utm_source=y#z → queued"),
        ({"max_depth": 2}, [found(URL, depth=3, source="link")], "dropped by depth: depth 3 is over 2"),
        ({"max_depth": 3}, [found(URL, depth=2, source="link"), found(URL, depth=1, source="link")],
         "known, but found nearer: its depth was lowered"),
        ({"scope": u.ScopeSpec(names=("b.example",))}, [found(URL, source="link")],
         "dropped by scope: a.example is not in scope domain"),
        ({"scope": u.ScopeSpec(kind="any", exclude=("/x",))}, [found(URL)],
         "dropped by exclude: matches scope.exclude /x"),
        ({"scope": u.ScopeSpec(kind="any", include=("/y",))}, [found(URL)], "matches none of scope.include /y"),
        ({"max_url_length": 17}, [found(URL)], "dropped by url_length: longer than 17 characters"),
        ({"max_redirects": 1}, [found(URL, source="redirect", hops=2)], "2 redirects in a row are over 1"),
        ({}, [found(URL, eta=AT + 60, expires=AT + 3600)],
         "queued, to be fetched from 2023-11-14 22:14:20 on, not after 2023-11-14 23:13:20"),
        ({}, [found(URL), found(URL, again="fetched")], "queued, although it is done: it is asked for again"),
        ({"max_pages_per_domain": 1}, [found("http://a.example/1"), found(URL)],
         "dropped by domain_budget: a.example has had its 1 URLs"),
    ],
)  # fmt: skip
def test_each_verdict_is_told_with_its_rule(spec: dict[str, Any], records: list[bytes], says: str) -> None:
    """By the fold itself, so that budgets and depths are what they were then."""
    assert told(history(job(**spec), *records).events, "found")[-1].endswith(says)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (PageMeta(URL, "j", http=302, location="/y", hops=1), ""),
        (PageMeta(URL, "j", http=302, location="/y", hops=2), "dropped by redirects: 3 redirects in a row are over 2"),
        (PageMeta(URL, "j", http=200, hops=2), ""),
        (PageMeta(URL, "k", http=302, location="/y", hops=2), ""),
    ],
)
def test_a_redirect_beyond_the_limit_is_told_at_its_page(page: PageMeta, says: str) -> None:
    """Parse drops it, so the log has no found of its target; nothing is said of another job's rules."""
    assert history(job(max_redirects=2), found(URL)).end_of_redirects(page) == says


def test_pages_at_the_limit_of_redirects_are_remembered() -> None:
    """One of them may redirect to the URL, of which the log has no other trace."""
    log = [job(max_redirects=2)]
    for hops in (1, 2):
        url = f"http://a.example/{hops}"
        log += [found(url, hops=hops), done(url, len(log) << 16, "redirected", page=(0, hops))]
    read = history(*log)
    assert read.last_hops == [(0, 2)]
    pages = [PageMeta("http://a.example/2", "j", http=302, location=to) for to in ("/x?gclid=1", "/y", "http://", "")]
    assert [read.is_target(page) for page in pages] == [True, False, False, False]


def test_a_seed_of_its_domain_brings_it_into_scope() -> None:
    """The same link is refused before that seed and queued after it."""
    link = found(URL, source="link", parent="http://b.example/")
    events = history(job(scope=u.ScopeSpec()), link, found("http://www.a.example/"), link).events
    first, second = told(events, "found")
    assert "dropped by scope" in first
    assert second.endswith("queued")


def test_attempts_are_told_with_their_effect() -> None:
    """A retry, a doubled done that changes nothing, the final one, a late one."""
    row = 1 << 16
    retry = done(URL, row, "failed", reason="timeout", next_at=AT + 9, delay_s=4.0, host_wait_s=2.0)
    final = done(URL, row, http=200, attempt=2, took_s=0.25, page=(0, 7))
    life = history(job(), found(URL), retry, retry, final, final)
    first, last = (
        "attempt 1: failed, timeout, again in 4.0 s, the host rests 2.0 s",
        "attempt 2: fetched, HTTP 200, 0.250 s",
    )
    nothing = " → changed nothing: no such row, or not its next attempt"
    assert told(life.events, "done") == [first, first + nothing, last, last + nothing]
    assert life.pages == [(0, 7)]
    assert [(state.status, state.attempt, state.page) for state in life.states()] == [("fetched", 2, (0, 7))]


def test_pages_of_other_jobs_are_not_asked_for() -> None:
    """Where only one job is meant, as its events are all that is told."""
    final = done(URL, 1 << 16, http=200, page=(0, 7))
    assert history(job(), found(URL), final, only="other").pages == []


def test_the_state_is_that_of_the_last_record_read() -> None:
    """Queued, then waiting with its due time, then refused by a rule that is named."""
    row = 1 << 16
    log = [
        job(),
        found(URL),
        done(URL, row, "failed", reason="dns", next_at=AT + 9, delay_s=4.0),
        done(URL, row, "refused", reason="robots", rule="Disallow: /x", attempt=2),
    ]
    at = [history(*log[:end]).states() for end in range(5)]
    assert [[(state.status, state.reason) for state in states] for states in at] == [
        [],
        [],
        [("queued", "")],
        [("waiting", "dns")],
        [("refused", "Disallow: /x")],
    ]
    assert at[3][0].due_at == AT + 9


def test_a_url_that_is_due_again_is_done_and_has_its_next_time() -> None:
    """It is no URL that waits for an attempt, and nothing holds it."""
    rules = u.RecrawlRules(60.0)
    life = history(job(recrawl=rules, state="watching"), found(URL), done(URL, 1 << 16, at=AT))
    (state,) = life.states()
    assert (state.status, state.reason, state.due_at, life.holds()) == ("again", "every 60 s", AT + 60, [])


def test_a_log_that_was_trimmed_has_its_jobs_from_elsewhere() -> None:
    """Without them every found would wait for its job's record."""
    life = History(URL, PLACES, supposed=[u.UrlsRecord(job="j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any")))])
    life.take(found(URL), 7, AT)
    assert [(event.kind, event.detail["verdict"]) for event in life.events] == [("found", "queued")]


def test_a_job_that_does_not_run_holds_its_urls() -> None:
    """Only those that are queued."""
    log = [job(), found(URL), job(rev=2, state="stopped")]
    assert history(*log[:2]).holds() == []
    assert history(*log).holds() == ["job j is stopped"]
    assert history(log[0], log[2]).holds() == []


def test_a_found_before_its_job_is_parked_then_queued() -> None:
    """Both are told, each where it happened."""
    life = history(found(URL), job())
    assert [(event.offset, event.detail["verdict"]) for event in life.events if event.kind == "found"] == [
        (0, "parked"),
        (1, "queued"),
    ]


def test_each_job_has_its_own_life() -> None:
    """By name, with its own spelling; one alone on request."""
    keeps = u.CanonicalRules(drop_params=())
    spelled = URL + "?utm_a=1"
    log = [job("a"), job("b", canonical=keeps), found(spelled, job="a"), found(spelled, job="b")]
    both = history(*log, url=spelled)
    assert [(one.job, one.url, one.rules) for one in both.spellings()] == [
        ("a", URL, ("canonical.drop_params",)),
        ("b", spelled, ()),
    ]
    assert {state.job for state in both.states()} == {"a", "b"}
    assert {event.job for event in history(*log, url=spelled, only="b").events} == {"b"}


def test_an_unknown_url_is_offered_to_each_job() -> None:
    """What a link to it would come to, by the state as it is."""
    life = history(job("in"), job("out", scope=u.ScopeSpec(names=("b.example",)), state="stopped"))
    assert life.states() == []
    assert [(offer.job, offer.verdict) for offer in life.offers(2, AT)] == [("in", "queued"), ("out", "dropped")]
    assert life.offers(2, AT)[1].reason.endswith("(the job is stopped)")


def test_a_url_that_pages_at_the_depth_limit_may_link_to_is_dropped_by_depth() -> None:
    """Parse sends no link that is too deep, so nothing of it is in the log; a page nearer to the seeds may link too."""
    deep = found("http://a.example/2", depth=2, source="link", parent="http://a.example/")
    log = [job(max_depth=2), deep, done("http://a.example/2", 1 << 16, depth=2)]
    told = [(one.verdict, one.depth, one.pages, one.reason) for one in history(*log).offers(3, AT)]
    assert told == [("dropped", 2, 1, "dropped by depth: depth 3 is over 2"), ("queued", 0, 0, "queued")]

    shallow = done("http://a.example/2", 1 << 16, depth=1)
    assert [one.depth for one in history(*log[:2], shallow).offers(3, AT)] == [0], "no page is so deep"
    again = u.encode(u.UrlsRecord(job="j", epoch=1, rewind=u.Rewind(0)))
    fresh = history(*log, again, job(epoch=1, rev=2, max_depth=2))
    assert [one.depth for one in fresh.offers(5, AT)] == [0], "the job has begun again"


def test_what_was_found_on_it_is_counted() -> None:
    """Of its own domain: the rest lies in other logs."""
    links = found("http://a.example/1", "http://a.example/2", source="link", parent=URL)
    assert history(job(), found(URL), links).children == 2


@pytest.mark.parametrize(
    "spelled",
    [
        "http://a.example/x",
        "HTTP://A.EXAMPLE/x",
        "http://%61.example/x",
        "http://ａ.example/x",
        "ht\ttp://a.ex\nample/x",
        "http:\\\\a.example\\x",
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_no_spelling_of_the_host_escapes_the_needle(spelled: str, ascii_only: bool) -> None:
    """However a JSON encoder writes it."""
    record = json.dumps({"v": 1, "job": "j", "urls": [{"url": spelled}]}, ensure_ascii=ascii_only).encode()
    assert told(history(job(), record).events, "found")


@pytest.mark.parametrize("spelled", ["http://0x7f.1/", "http://2130706433/", "http://127.1/", "http://0177.0.0.1/"])
def test_no_spelling_of_an_address_escapes_the_needle(spelled: str) -> None:
    """WHATWG reads each of these as 127.0.0.1."""
    assert told(history(job(), found(spelled), url="http://127.0.0.1/").events, "found")


@pytest.mark.parametrize("spelled", ["http://[0:0:0:0:0:0:0:1]/", "http://[::0.0.0.1]:80/", "http://u@[0::1]/"])
def test_no_spelling_of_an_ipv6_address_escapes_the_needle(spelled: str) -> None:
    """All are [::1]."""
    assert told(history(job(), found(spelled), url="http://[::1]/").events, "found")


def test_the_needle_lets_other_domains_go() -> None:
    """They are the most of a log, and are never decoded."""
    other = found("http://b.example/a", "http://b.example/%7E", "http://10.0.0.1:80/", source="link")
    assert not DomainPrefilter("a.example").may_concern(other)
    assert not DomainPrefilter("127.0.0.1").may_concern(other)
    assert not DomainPrefilter("[::1]").may_concern(other)
    assert not DomainPrefilter("a.example").may_concern(None)


@given(st.lists(st.sampled_from(["http://a.example/1", URL, URL + "?q", "http://b.example/", "x"]), max_size=30))
def test_it_says_what_the_whole_log_says(urls: list[str]) -> None:
    """Leaving other domains out changes nothing about this one."""
    log = [job(max_pages_per_domain=2), *(found(url, source="link") for url in urls)]
    whole = History(URL, PLACES)
    for offset, record in enumerate(log):
        whole.take(record, offset, AT + offset)
    assert history(*log).events == whole.events


@given(st.binary(max_size=200))
def test_garbage_changes_nothing(value: bytes) -> None:
    """Whatever bytes another client writes."""
    lives = History(URL, PLACES), History(URL, PLACES)
    for life, first in zip(lives, (value, b""), strict=True):
        life.take(first, 0, AT)
        life.take(job(), 1, AT)
        life.take(found(URL), 2, AT)
    assert lives[0].events == lives[1].events


@pytest.mark.parametrize(
    ("rules", "url", "named"),
    [
        (u.CanonicalRules(), URL, ()),
        (u.CanonicalRules(), URL + "?gclid=1", ("canonical.drop_params",)),
        (u.CanonicalRules(drop_params=()), URL + "?gclid=1", ()),
        (
            u.CanonicalRules(sort_query=True, drop_www=True, drop_slash=True),
            URL + "/?gclid=1",
            ("canonical.drop_params", "canonical.drop_slash"),
        ),
    ],
)
def test_only_rules_that_change_the_url_are_named(rules: u.CanonicalRules, url: str, named: tuple[str, ...]) -> None:
    """Each is tried alone."""
    assert acting(rules, url) == named


def test_two_spellings_in_one_record_are_two_founds() -> None:
    """The second one is known, and none is left over."""
    life = history(job(), found(URL, URL + "#f"))
    assert [event.detail["verdict"] for event in life.events if event.kind == "found"] == ["queued", "known"]


def test_a_rewind_of_the_crawl_marks_what_it_took_back() -> None:
    """The state is as if that had not been; it is told all the same."""
    back = u.encode(u.UrlsRecord(epoch=1, rewind=u.Rewind(2)))
    log = [job(), found(URL), done(URL, 1 << 16, http=200), back, job(epoch=1, rev=2)]
    life = history(*log)
    assert [(event.kind, event.offset, event.rewound) for event in life.events] == [
        ("job", 0, False),
        ("found", 1, False),
        ("done", 2, True),
        ("rewind", 3, False),
        ("job", 4, False),
    ]
    assert [state.status for state in life.states()] == ["queued"]


def test_a_job_that_begins_again_has_forgotten() -> None:
    """Found once more, the URL is queued in the new epoch."""
    fresh = u.encode(u.UrlsRecord(job="j", epoch=1, rewind=u.Rewind(0)))
    log = [job(), found(URL), done(URL, 1 << 16, http=200), fresh]
    assert history(*log).states() == []
    again = history(*log, job(epoch=1, rev=2), u.encode(u.UrlsRecord(job="j", epoch=1, urls=[u.FoundUrl(URL)])))
    assert [state.status for state in again.states()] == ["queued"]
    assert "begins again in epoch 1" in told(again.events, "rewind")[0]


def test_orders_and_a_deletion_stand_in_the_history() -> None:
    """A pause with its reason, an order that was refused, and the end of all that was known."""
    orders = [
        u.JobOrder(1, "paused", reason="lunch"),
        u.JobOrder(1, "cancelled"),
        u.JobOrder(2, "deleted"),
    ]
    log = [job(), found(URL), *(u.encode(u.UrlsRecord(job="j", order=order)) for order in orders)]
    known = history(*log)
    told = [event.what for event in known.events if event.offset > 1]
    assert told[0].startswith("job j, revision 2: paused (lunch), ")
    assert told[1].startswith("an order for job j changed nothing: the order expects revision 1")
    assert told[2:] == ["job j is deleted: what was known of it is forgotten", "job j, revision 4: deleted"]
    assert (known.states(), known.offers(9, AT)) == ([], [])
