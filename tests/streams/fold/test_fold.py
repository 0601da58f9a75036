"""The fold: pure, total, and the same rows for the same log however it is read."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import urls as u
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.overlay import InMemory
from crawlog.streams.url.place import Places, hashed
from tests.support.folding import ANY, AT, A, B, C, State, crawl, done, found, job, sequence, spec, true_dones

# ---------------------------------------------------------------------- total

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
NUMBERS = st.sampled_from(
    [0, 1, -1, 127, 128, -129, 65_535, 65_536, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 1 << 70]
)
FLOATS = st.sampled_from([0, 0.5, -1.0, 1e18, 1e306, 1.7e308, -1e308, 5e-324])
URLS = st.sampled_from(
    [
        A,
        B,
        C,
        "",
        "x",
        "http:",
        "http://",
        "https://[::1",
        "http://a.com",
        "ftp://a.com/",
        "http://a..b/",
        "http://münchen.de/",
        "http://xn--/",
        "http://a.com:99999/",
        "http://%00/",
        "http://..",
        "http://u:p@a.com/",
        "http://a.com/" + "x/" * 50,
        "http://[::1]:80/",
        "http:///",
        "https://@",
        "http://:80/",
        "http://1.2.3.4/",
        "http://\u0130.com/",
        "\x00",
    ]
) | st.text(max_size=20)
VALUES = (
    JSON | NUMBERS | FLOATS | URLS | st.sampled_from(["j", "default", "seed", "redirect", "failed", "fetched", "host"])
)


def optional(**fields: "st.SearchStrategy[Any]") -> "st.SearchStrategy[dict[str, Any]]":
    """Objects with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


FOUND = optional(
    id=NUMBERS,
    request=optional(
        method=st.text(max_size=4), jar=st.text(max_size=4), kwargs=JSON, meta=JSON, unfiltered=st.booleans()
    ),
    url=URLS,
    depth=NUMBERS,
    priority=NUMBERS,
    hops=NUMBERS,
    joins=st.booleans(),
    source=st.sampled_from(["seed", "link", "redirect"]),
    parent=URLS,
)
RESULT = optional(
    url=URLS,
    id=NUMBERS,
    row=NUMBERS | st.integers(0, 6).map(sequence),
    status=st.sampled_from(["fetched", "failed", "refused"]),
    priority=NUMBERS,
    attempt=NUMBERS,
    depth=NUMBERS,
    at=FLOATS,
    next_at=FLOATS,
    delay_s=FLOATS,
    host_wait_s=FLOATS,
)
PATTERNS = st.lists(st.sampled_from(["(", "a", "(a{900}){1}" * 40, "\\", "[[:foo:]]"]), max_size=40)
SPEC = optional(
    rev=NUMBERS,
    max_depth=NUMBERS | st.none(),
    max_pages_per_domain=NUMBERS | st.none(),
    max_redirects=NUMBERS,
    max_url_length=NUMBERS,
    order=st.sampled_from(["fifo", "lifo"]),
    dedup=st.sampled_from(["exact", "bloom"]),
    dedup_error=FLOATS,
    state=st.sampled_from(["running", "stopped", "deleted"]),
    scope=optional(kind=st.sampled_from(["any", "host", "domain"]), include=PATTERNS, exclude=PATTERNS),
    canonical=optional(drop_params=st.lists(st.text(max_size=3), max_size=3)),
)
RECORD = optional(
    job=st.sampled_from(["j", "k", "default", "", "ü\n"]) | st.none(),
    v=st.sampled_from([1, 2]),
    epoch=NUMBERS,
    fwd=NUMBERS,
    at=FLOATS,
).flatmap(
    lambda head: st.one_of(
        st.fixed_dictionaries({"urls": st.lists(FOUND | VALUES, max_size=4)}),
        st.fixed_dictionaries({"results": st.lists(RESULT | VALUES, max_size=4)}),
        st.fixed_dictionaries({"spec": SPEC | VALUES}),
        st.fixed_dictionaries({"joins": st.lists(st.text(max_size=4) | VALUES, max_size=4)}),
        st.fixed_dictionaries({"rewind": optional(start=NUMBERS) | VALUES}),
        FOUND,
        JSON.filter(lambda value: isinstance(value, dict)),
    ).map(lambda rest: {**head, **rest})
)


def as_json(value: Any) -> bytes:
    """JSON, unpaired surrogates, NaN and all."""
    return json.dumps(value).encode()


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), JSON.map(as_json), RECORD.map(as_json)), max_size=12))
def test_no_record_breaks_the_fold(values: list[bytes | None]) -> None:
    """Whatever stands in the log is folded, counted or dead; the state can be written and opened after it."""
    state = State(job(max_depth=3), found(A, B, depth=2))
    state.take(*values)
    state.checkpoint()
    state.open()
    state.take(found(C))


@given(st.data())
def test_a_damaged_record_breaks_nothing(data: st.DataObject) -> None:
    """A valid record with bytes changed."""
    valid = data.draw(st.sampled_from([job(rev=2), found(A, B, depth=1, priority=5), done(A, sequence(1))]))
    record = bytearray(valid)
    for at in data.draw(st.lists(st.integers(0, len(record) - 1), min_size=1, max_size=3)):
        record[at] = data.draw(st.integers(0, 255))
    state = State(job(max_depth=3), found(A))
    state.take(bytes(record))
    state.checkpoint()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "empty value"),
        (b"not a url", "neither a JSON object nor"),
        (b'{"v": 3, "url": "http://a.com/"}', "Invalid value 3"),
        (b'{"job": "j"}', "exactly one of"),
        (b'{"results": []}', "names its job"),
        (b"[" * 99_999, "neither a JSON object nor"),
        (u.encode(u.UrlsRecord(job="k", spec=u.JobSpec(scope=u.ScopeSpec(include=("(",))))), "not an RE2 expression"),
        (u.encode(u.UrlsRecord(job="k", spec=u.JobSpec(render=u.RenderRules(exclude=("(",))))), "render.exclude"),
        (u.encode(u.UrlsRecord(job="k", spec=u.JobSpec(scope=u.ScopeSpec(exclude=("[a-z]{999}",) * 4)))), "too costly"),
        (u.encode(u.UrlsRecord(job="k", epoch=65_536, spec=ANY)), "epoch 65536"),
        (b'{"v": 1, "job": "k", "spec": {"dedup": "bloom", "dedup_error": 0.0}}', "spec.dedup_error"),
        (b'{"v": 1, "job": "k", "spec": {"dedup": "bloom", "dedup_error": 0.5}}', "spec.dedup_error"),
        (b'{"v": 1, "urls": [{"url": "http://a.com/", "id": -1}]}', "an identity has 64 bits"),
        (b'{"v": 1, "urls": [{"url": "http://a.com/", "id": 18446744073709551616}]}', "an identity has 64 bits"),
        (b'{"v": 1, "job": "default", "spec": {"rev": 5, "state": "deleted"}}', "cannot be deleted"),
    ],
)
def test_what_cannot_be_understood_is_dead(value: bytes | None, why: str) -> None:
    """The dead letter says why; nothing else happens."""
    state = State(job())
    before = state.digest()
    [effects] = state.take(value)
    assert why in effects.dead[0]
    assert state.digest() == before


@pytest.mark.parametrize(
    "bad",
    [
        {"url": "ftp://a.com/"},
        {"url": A, "depth": -1},
        {"url": A, "depth": 1 << 70},
        {"url": A, "hops": -1},
        {"url": A, "via": "AAAA" * 171},
    ],
)
def test_a_bad_entry_is_counted_and_its_neighbours_are_taken(bad: dict[str, Any]) -> None:
    """One URL of a batch makes no sense."""
    state = State(job())
    state.take(as_json({"job": "j", "urls": [bad, {"url": B}]}))
    assert state.urls() == [B]
    assert state.counts.bad == 1


def test_a_row_keeps_what_led_to_it() -> None:
    """So a circle of redirects is noticed after any kill."""
    state = State(job())
    state.take(as_json({"job": "j", "urls": [{"url": A, "source": "redirect", "hops": 1, "via": "AAAAAAAAAAE="}]}))
    assert [row.via for row in state.queued()] == [(1).to_bytes(8, "big")]


def test_a_priority_beyond_the_range_is_the_nearest_within() -> None:
    """Such a URL is queued, found nearer and done like any other."""
    state = State(job(max_depth=5), found(A, depth=3, priority=1 << 40), found(A, depth=1, priority=1 << 40))
    assert [(row.depth, row.priority) for row in state.queued()] == [(1, (1 << 31) - 1)]
    state.take(done(A, sequence(1), priority=(1 << 31) - 1, depth=1))
    assert state.urls() == []


def test_the_fold_knows_the_end_of_the_pages_that_dones_name() -> None:
    """Those of its own partition alone; what makes no sense changes nothing."""
    state = State(job(), found(A, B), done(A, sequence(1), page=(0, 6)), done(B, sequence(1, 1), page=(3, 9)))
    state.take(done(B, sequence(1, 1), page=(0, -1)))
    assert (state.counts.page_end, state.counts.page_back) == (7, 0)


def test_a_page_whose_offset_was_given_out_before_shows_that_the_log_was_cut() -> None:
    """Until a page that is gone has been asked for again: the counting then begins anew."""
    state = State(job(), found(A, B), done(A, sequence(1), page=(0, 6)), done(B, sequence(1, 1), page=(0, 5)))
    assert (state.counts.page_end, state.counts.page_back) == (7, 1)
    state.take(as_json({"job": "j", "urls": [{"url": A, "again": "fetched"}]}))
    assert (state.counts.page_end, state.counts.page_back) == (0, 0)


# ---------------------------------------------------------------------- the same rows


LOGS = st.integers(0, 10_000).map(lambda seed: true_dones(crawl(seed)))


@given(LOGS, st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)))
def test_checkpoints_and_restarts_do_not_show(log: list[bytes], checkpoints: list[int], restarts: list[int]) -> None:
    """All at once, or with checkpoints and reopened states anywhere: the same digest."""
    other = State()
    for at, value in enumerate(log):
        if at in checkpoints or at in restarts:
            other.checkpoint()
        if at in restarts:
            other.open()
        other.take(value)
    assert other.digest() == State(*log).digest()


@given(LOGS)
def test_counts_equal_a_recount_of_the_rows(log: list[bytes]) -> None:
    """Queued, by job and by host, and due again; every waiting row has its due-time key and no other."""
    state = State(*log)
    state.checkpoint()
    rows = list(state.rows.scan(b"q")) + list(state.rows.scan(b"w"))
    for number, known in state.fold.numbers.items():
        of_job = [(key, r.read_queued(value)) for key, value in rows if r.job_of(key) == number]
        mine = [key for key, row in of_job if not row.is_again]
        assert (known.counts.queued, known.counts.again) == (len(mine), len(of_job) - len(mine))
        for key, value in state.rows.scan(r.of_job(b"g", number)):
            assert r.read_host_queue(value).queued == sum(other[5:13] == key[5:] for other in mine)
    waiting = {
        b"d" + key[1:5] + r.read_queued(value).due_ms.to_bytes(8, "big") + key[5:]
        for key, value in state.rows.scan(b"w")
    }
    assert {key for key, _ in state.rows.scan(b"d")} == waiting


@given(LOGS)
def test_no_url_is_lost(log: list[bytes]) -> None:
    """What was accepted is queued, waiting or counted as done: accepted is what the seen rows hold."""
    state = State(*log)
    state.checkpoint()
    for number, known in state.fold.numbers.items():
        counts = known.counts
        seen = sum(1 for _ in state.rows.scan(b"f" + number.to_bytes(2, "big")))
        assert counts.queued + counts.fetched + counts.redirected + counts.failed + counts.refused >= seen


# ---------------------------------------------------------------------- dones


def test_a_done_removes_its_row() -> None:
    """The URL stays known."""
    state = State(job(), found(A, B), done(A, sequence(1), at=AT + 5))
    assert state.urls() == [B]
    assert (state.counts.fetched, state.counts.queued) == (1, 1)
    state.take(found(A))
    assert state.urls() == [B]


def test_final_answers_are_counted_by_status_and_by_why_there_is_no_page() -> None:
    """Not an attempt that another one follows, nor a refusal by robots.txt; a status that no server sends neither."""
    results: list[dict[str, Any]] = [
        {"http": 200},
        {"http": 200, "unkept": "application/json"},
        {"http": 403},
        {"http": 503, "status": "failed", "next_at": AT + 5},
        {"http": 10**30},
        {"status": "failed", "reason": "robots_unreachable: dns"},
        {"status": "refused", "reason": "robots"},
    ]
    state = State(job(), found(*(f"{A}{number}" for number in range(len(results)))))
    state.take(*(done(f"{A}{number}", sequence(1, number), **one) for number, one in enumerate(results)))
    assert state.counts.statuses == {"200": 2, "403": 1}
    assert state.counts.no_page == {"application/json": 1, "robots_unreachable": 1}


@pytest.mark.parametrize(("sizes", "counted"), [((10, 20), 30), ((10, -5), 10), ((10, 10**30), 10 + (1 << 31))])
def test_the_bytes_of_final_answers_are_summed(sizes: tuple[int, int], counted: int) -> None:
    """Each once, whoever writes it again; a size that no body has cannot break the sums."""
    state = State(job(), found(f"{A}0", f"{A}1"))
    dones = [done(f"{A}{number}", sequence(1, number), bytes=size) for number, size in enumerate(sizes)]
    state.take(*dones, *dones)
    assert state.counts.bytes == counted


def test_a_result_that_no_longer_counts_leaves_its_classes() -> None:
    """So a job whose failed URLs were fetched again shows what still fails; an unknown class stays 0."""
    state = State(job(), found(*(f"{A}{number}" for number in range(3))))
    state.take(*(done(f"{A}{number}", sequence(1, number), http=403) for number in range(2)))
    state.take(done(f"{A}2", sequence(1, 2), "failed", reason="dns"))
    state.take(found(f"{A}0", again="fetched", again_http=403), found(f"{A}2", again="failed", again_why="dns"))
    assert (state.counts.statuses, state.counts.no_page) == ({"403": 1}, {})
    assert (state.counts.fetched, state.counts.failed, state.counts.queued) == (1, 0, 2)
    state.take(found(f"{A}1", again="fetched", again_http=500, again_why="tls"))
    assert (state.counts.statuses, state.counts.no_page) == ({"403": 1}, {})


def test_a_server_that_thinks_of_ever_new_types_fills_no_row() -> None:
    """Beyond some of them they are counted together."""
    state = State(job(), found(*(f"{A}{number}" for number in range(99))))
    state.take(*(done(f"{A}{number}", sequence(1, number), unkept="x/" + "y" * 200) for number in range(9)))
    state.take(*(done(f"{A}{number}", sequence(1, number), unkept=f"x/{number}") for number in range(9, 99)))
    counted = state.counts.no_page
    assert (len(counted), sum(counted.values()), max(map(len, counted))) == (41, 99, 100)
    assert counted["other"] == 51


STALE: dict[str, Callable[[], bytes]] = {
    "doubled": lambda: done(A, sequence(1)),
    "another URL's row": lambda: done(A, sequence(2)),
    "another URL of the host": lambda: done("http://b.com/y", sequence(2)),
    "an older attempt": lambda: done(B, sequence(2), "failed", attempt=1, next_at=AT + 9),
    "an attempt too many": lambda: done(B, sequence(2), "failed", attempt=3, next_at=AT + 9),
    "another epoch": lambda: done(B, sequence(2), epoch=1),
    "an unknown row": lambda: done(B, sequence(77)),
    "an unknown host": lambda: done("http://nobody.com/", sequence(2)),
}


@pytest.mark.parametrize("case", STALE)
def test_a_late_or_doubled_done_changes_nothing(case: str) -> None:
    """No row but the count of folded records."""
    state = State(job(), found(A), found(B), done(A, sequence(1)), done(B, sequence(2), "failed", next_at=AT + 5))
    state.checkpoint()
    before = dict(state.base.rows)
    state.take(STALE[case]())
    state.checkpoint()
    assert [key[:1] for key in before if state.base.rows[key] != before[key]] == [b"c"]
    assert before.keys() == state.base.rows.keys()


def test_a_failed_url_waits_for_its_next_attempt() -> None:
    """It leaves the queue and is in the due-time index, with the wait as a duration."""
    state = State(job(), found(A), done(A, sequence(1), "failed", attempt=1, next_at=AT + 5, delay_s=5.0))
    assert state.urls() == []
    [waiting] = state.queued(b"w")
    assert (waiting.attempt, waiting.due_ms, waiting.wait_s) == (1, int((AT + 5) * 1000), 5.0)
    assert (state.counts.queued, state.counts.retried) == (1, 1)


def test_a_late_success_ends_a_waiting_url() -> None:
    """A worker that lost its partition had it all the same: the page is in the log."""
    state = State(job(), found(A), done(A, sequence(1), "failed", next_at=AT + 5), done(A, sequence(1)))
    assert state.queued(b"w") == []
    assert list(state.rows.scan(b"d")) == []
    assert state.counts.queued == 0


def test_a_host_remembers_its_last_answer() -> None:
    """Failures are counted while it asks for rest, and forgotten with the first good answer."""
    state = State(job(), found(A, "http://a.com/2"))
    host = r.host_key(hashed("http://a.com:80"))
    state.take(done(A, sequence(1), "failed", next_at=AT, at=AT, host_wait_s=60.0))
    assert r.read_host(state.rows.get(host) or b"") == r.HostRow(AT, 60.0, 1)
    state.take(done("http://a.com/2", sequence(1, 1), at=AT + 70))
    assert r.read_host(state.rows.get(host) or b"") == r.HostRow(AT + 70, 0.0, 0)


@pytest.mark.parametrize("status", ["failed", "refused"])
def test_a_done_of_a_url_that_was_not_requested_tells_nothing_of_its_host(status: u.Status) -> None:
    """A host whose robots.txt cannot be read has not answered, and one that failed before is no better for it."""
    state = State(job(), found(A, "http://a.com/2", "http://a.com/3"))
    host = r.host_key(hashed("http://a.com:80"))
    state.take(done(A, sequence(1), status, at=AT))
    assert state.rows.get(host) is None
    state.take(done("http://a.com/2", sequence(1, 1), "failed", at=AT, host_wait_s=60.0))
    state.take(done("http://a.com/3", sequence(1, 2), status, at=AT + 70))
    assert r.read_host(state.rows.get(host) or b"") == r.HostRow(AT, 60.0, 1)


def test_a_done_without_a_time_has_its_records() -> None:
    """The log's clock stands in."""
    state = State(job(), found(A), done(A, sequence(1)))
    assert r.read_host(state.rows.get(r.host_key(hashed("http://a.com:80"))) or b"").last_at == AT


# ---------------------------------------------------------------------- depth


def test_a_queued_url_found_nearer_is_lowered_in_place() -> None:
    """One row, the lesser depth, the old place in the queue."""
    state = State(job(max_depth=5), found(A, depth=3), found("http://a.com/2"), found(A, depth=1))
    assert [(row.url, row.depth) for row in state.queued()] == [(A, 1), ("http://a.com/2", 0)]


def test_a_lowered_url_beyond_the_window_is_still_found() -> None:
    """Written at a checkpoint, then lowered: a scan of its queue sees it before the next checkpoint."""
    state = State(job(max_depth=5), found(A, depth=3))
    state.checkpoint()
    state.take(found(A, depth=1))
    prefix = r.queue_key(1, hashed("http://a.com:80"), 127, 0, lifo=False)[: r.QUEUE_PREFIX_BYTES]
    assert [r.read_queued(value).depth for _, value in state.rows.scan_queue(prefix, prefix, 10)] == [1]


def test_a_waiting_url_found_nearer_is_lowered_in_place() -> None:
    """It still waits."""
    state = State(job(max_depth=5), found(A, depth=3), done(A, sequence(1), "failed", depth=3, next_at=AT + 5))
    state.take(found(A, depth=1))
    assert [(row.depth, row.attempt) for row in state.queued(b"w")] == [(1, 1)]
    assert state.urls() == []


def test_a_url_found_nearer_while_in_flight_is_fetched_again() -> None:
    """The done tells a greater depth than the row: the row stays; the second done ends it."""
    state = State(job(max_depth=5), found(A, depth=3), found(A, depth=1), done(A, sequence(1), depth=3))
    assert state.urls() == [A]
    state.take(done(A, sequence(1), depth=1))
    assert (state.urls(), state.counts.fetched, state.counts.queued) == ([], 1, 0)


def test_a_url_found_nearer_after_it_was_done_is_queued_again() -> None:
    """Its links may now be within the limit."""
    state = State(job(max_depth=5), found(A, depth=3), done(A, sequence(1), depth=3), found(A, depth=1))
    assert [(row.url, row.depth) for row in state.queued()] == [(A, 1)]


@pytest.mark.parametrize("depth", [3, 4])
def test_a_url_found_no_nearer_is_known(depth: int) -> None:
    """At the same depth or deeper."""
    state = State(job(max_depth=5), found(A, depth=3), found(A, depth=depth))
    assert (len(state.queued()), state.counts.seen) == (1, 1)


# ---------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("changes", "url", "fields", "rule"),
    [
        ({"max_depth": 2}, A, {"depth": 3}, "depth"),
        ({"max_redirects": 2}, A, {"hops": 3}, "redirects"),
        ({"max_url_length": 20}, A + "x" * 20, {}, "url_length"),
        ({"scope": u.ScopeSpec(names=("a.com",))}, B, {"source": "link"}, "scope"),
        ({"scope": u.ScopeSpec(kind="any", exclude=("/x$",))}, B, {}, "exclude"),
        ({"scope": u.ScopeSpec(kind="any", include=("/y$",))}, B, {}, "include"),
        ({}, A + "a/a/a/a/a", {}, "trap_path"),
    ],
)
def test_a_refused_url_is_counted_by_rule(changes: dict[str, Any], url: str, fields: dict[str, Any], rule: str) -> None:
    """It is neither queued nor marked."""
    state = State(job(**changes), found(url, **fields))
    assert state.counts.dropped == {rule: 1}
    state.checkpoint()
    assert not {b"q", b"f", b"b"} & {key[:1] for key in state.base.rows}


def unsent(dropped: dict[str, int], **fields: Any) -> bytes:
    """What parse tells of the links that it did not send."""
    return u.encode(u.UrlsRecord(job="j", urls=[], dropped=dropped, **fields))


def test_links_that_parse_did_not_send_are_counted_with_those_that_the_fold_dropped() -> None:
    """One number for each rule, whoever obeyed it."""
    state = State(job(max_depth=2), unsent({"depth": 3, "scope": 1}), found(A, depth=3), unsent({"depth": 2}))
    assert state.counts.dropped == {"depth": 6, "scope": 1}
    assert (state.counts.folded, state.counts.bad) == (4, 0)


@pytest.mark.parametrize(
    ("record", "bad"),
    [
        (unsent({"depth": -1}), 1),
        (unsent({"depth": 1 << 62}), 1),
        (unsent({"made up": 1, "x" * 1000: 2}), 2),
        (unsent({"depth": 1}, epoch=1), 0),
        (unsent({"depth": 1}).replace(b'"j"', b'"k"'), 0),
    ],
)
def test_counts_that_make_no_sense_or_are_of_another_epoch_change_nothing(record: bytes, bad: int) -> None:
    """Anybody may write them: a row that grows, or a number that no row can hold, would end the worker."""
    state = State(job(), *[record] * 3)
    assert (state.counts.dropped, state.counts.bad) == ({}, 3 * bad)
    state.checkpoint()


def test_a_domain_has_a_budget() -> None:
    """URLs ever queued count, over all its hosts."""
    state = State(job(max_pages_per_domain=2), found("http://a.com/1", "http://www.a.com/2", "http://a.com/3", B))
    assert sorted(state.urls()) == ["http://a.com/1", B, "http://www.a.com/2"]
    assert state.counts.dropped == {"domain_budget": 1}


@pytest.mark.parametrize("limits", [{}, {"max_depth": 3}, {"max_pages_per_domain": 1}])
def test_a_url_that_a_check_for_cookies_leads_back_to_is_queued_once_more_and_only_once(limits: dict[str, Any]) -> None:
    """However often parse says so: after a kill, or in a replay. Its first done counts no longer."""
    state = State(job(**limits), found(A), done(A, sequence(1), "redirected"))
    assert state.counts.redirected == 1
    for _ in range(3):
        state.take(found(A, source="redirect", hops=2, checked=True))
        state.checkpoint()
        state.open()
    assert state.urls() == [A]
    assert (state.counts.redirected, state.counts.queued) == (0, 1)
    state.take(done(A, sequence(3)), found(A, source="redirect", checked=True))
    assert (state.urls(), state.counts.fetched, state.counts.redirected) == ([], 1, 0)


@pytest.mark.parametrize("fields", [{"source": "seed"}, {"source": "redirect", "joins": True}])
def test_a_seed_and_its_redirect_join_the_scope(fields: dict[str, Any]) -> None:
    """From then on links to that domain are in scope, after a restart too."""
    state = State(job(scope=u.ScopeSpec()), found(A, **fields))
    state.checkpoint()
    state.open()
    state.take(found("http://www.a.com/2", B, source="link"))
    assert state.urls().count("http://www.a.com/2") == 1
    assert state.counts.dropped == {"scope": 1}


@pytest.mark.parametrize(
    ("kind", "names"), [("domain", ("b.com", "a.com")), ("host", ("www.a.com:8080",)), ("any", ("a.com",))]
)
def test_names_of_a_record_join_the_scope_before_their_seeds(kind: Any, names: tuple[str, ...]) -> None:
    """Links to them are queued at once, after a restart too; what is no name is counted, and no scope grows by it."""
    record = u.encode(u.UrlsRecord(job="j", joins=(*names, "", "ä.com", "a" * 300)))
    state = State(job(scope=u.ScopeSpec(kind)), record, record)
    state.checkpoint()
    state.open()
    state.take(found("http://www.a.com:8080/2", source="link"), found("http://c.com/", source="link"))
    assert state.urls()[:1] == ["http://www.a.com:8080/2"]
    assert state.counts.dropped == ({} if kind == "any" else {"scope": 1})
    assert state.counts.bad == (0 if kind == "any" else 6)
    assert state.counts.folded == 5
    assert [key[5:].decode() for key, _ in state.rows.scan(b"s")] == ([] if kind == "any" else sorted(names))


def test_names_for_a_job_that_nobody_knows_change_nothing() -> None:
    """Its record always comes before."""
    state = State(u.encode(u.UrlsRecord(job="j", joins=("a.com",))))
    assert list(state.rows.scan(b"")) == []


class CountedReads(InMemory):
    """Rows that count the look-ups."""

    alone = 0
    together = 0

    def get(self, key: bytes) -> bytes | None:
        """The row, or None."""
        self.alone += 1
        return super().get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows, or None."""
        self.together += 1
        return super().get_many(keys)


@pytest.mark.parametrize("path", ["a", "b"])
def test_the_rows_of_a_records_hosts_are_read_together(path: str) -> None:
    """A record of 500 seeds on as many hosts, known or new to the partition, is one read of the state, not 2,500."""
    state = State(job(scope=u.ScopeSpec(kind="host")))
    state.take(found(*(f"http://n{number}.com/a" for number in range(0, 500, 2)), source="seed"))
    state.checkpoint()
    state.base = base = CountedReads(state.base.rows.items())
    state.open()
    base.alone = 0
    state.take(found(*(f"http://n{number}.com/{path}" for number in range(500)), source="seed"))
    assert len(state.queued()) == (500 if path == "a" else 750)
    assert (base.alone, base.together) == (0, 1)


class CountedName(str):
    """A name that counts how often it is compared."""

    compared = 0

    __hash__ = str.__hash__
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


def test_a_seed_is_not_compared_with_every_name_of_its_job() -> None:
    """The names of a scope are looked up, not searched: a job of 50,000 seed hosts is folded as fast as one of ten."""
    state = State(job(scope=u.ScopeSpec(kind="host")))
    names = tuple(CountedName(f"n{number}.com") for number in range(1000))
    state.fold.jobs["j"].set(spec(scope=u.ScopeSpec(kind="host", names=names)))
    CountedName.compared = 0
    state.take(found(*(f"http://n{number}.com/" for number in range(1000))))
    assert len(state.queued()) == 1000
    assert CountedName.compared <= 3 * 1000


@pytest.mark.parametrize(("order", "expected"), [("fifo", ["3", "1", "2", "4"]), ("lifo", ["3", "4", "2", "1"])])
def test_key_order_is_fetch_order(order: str, expected: list[str]) -> None:
    """The priority first, then first in or last in."""
    urls = [u.FoundUrl(f"http://a.com/{n}", priority=5 if n == 3 else 0) for n in (1, 2, 3, 4)]
    state = State(job(order=order), u.encode(u.UrlsRecord(job="j", urls=urls)))
    assert [url[-1] for url in state.urls()] == expected


def test_two_spellings_are_one_url() -> None:
    """The job's canonical rules apply to what any producer wrote."""
    state = State(job(), found("HTTP://A.com:80/?utm_source=x&b=1#f", "http://a.com/?b=1"))
    assert state.urls() == ["http://a.com/?b=1"]


# ---------------------------------------------------------------------- jobs


def test_founds_of_an_unknown_job_are_parked_and_taken_in_order() -> None:
    """Across a restart; others' stay parked."""
    state = State(found("http://a.com/2"), found(B, job="k"), found("http://a.com/1", "ftp://x/"))
    state.checkpoint()
    state.open()
    state.take(job())
    assert state.urls() == ["http://a.com/2", "http://a.com/1"]
    assert len(list(state.rows.scan(b"p"))) == 1


def test_a_parked_url_is_queued_where_it_was_found() -> None:
    """Its place in the queue is its own, not the job record's."""
    state = State(found(A), job())
    state.take(done(A, sequence(0)))
    assert state.urls() == []


def test_a_bare_record_belongs_to_the_one_active_job() -> None:
    """A JSON object or a line."""
    state = State(job(), b'{"url": "http://a.com/"}', b"http://b.com/x\n")
    assert sorted(state.urls()) == [A, B]
    assert state.counts.queued == 2


@pytest.mark.parametrize("before", [[], [job("j"), job("k")], [job("j", state="stopped")]])
def test_a_bare_record_without_one_active_job_belongs_to_default(before: list[bytes]) -> None:
    """With the scope of its own host."""
    state = State(*before, b"http://a.com/", found("http://www.a.com/", "http://a.com/2", job="default", source="link"))
    assert state.urls() == [A, "http://a.com/2"]
    assert state.fold.jobs["default"].counts.dropped == {"scope": 1}


def test_default_needs_no_job_record() -> None:
    """A found that names it is not parked."""
    assert State(found(A, job="default")).urls() == [A]


def test_only_a_newer_revision_changes_a_job() -> None:
    """The same record twice, or an older one late, changes nothing."""
    state = State(job(rev=2, max_depth=1), job(rev=1, max_depth=9), job(rev=2, max_depth=1))
    assert state.fold.jobs["j"].spec.max_depth == 1
    state.take(job(rev=3, max_depth=9))
    assert state.fold.jobs["j"].spec.max_depth == 9


@pytest.mark.parametrize("change", [{"order": "lifo"}, {"dedup": "bloom"}])
def test_order_and_dedup_are_fixed_for_a_jobs_life(change: dict[str, Any]) -> None:
    """Keys and the seen table depend on them: a queued URL would never be done, a known one not be known."""
    state = State(job(), found(A), job(rev=2, **change), done(A, sequence(1)), found(A))
    assert state.urls() == []
    assert (state.counts.fetched, state.counts.seen) == (1, 1)


def test_a_new_epoch_offers_all_urls_anew() -> None:
    """Dones of the old one no longer count."""
    state = State(job(), found(A), done(A, sequence(1)), job(rev=2, epoch=1), found(A))
    assert state.urls() == [A]
    state.take(done(A, sequence(4), epoch=0))
    assert state.urls() == [A]
    state.take(done(A, sequence(4), epoch=1))
    assert state.urls() == []


# ---------------------------------------------------------------------- misplaced

EIGHT = Places(8)


def elsewhere(partition: int) -> Iterable[str]:
    """URLs of other partitions."""
    return (url for n in range(100) if EIGHT.of(url := f"http://site{n}.com/").partition != partition)


def test_a_misplaced_url_is_forwarded_once() -> None:
    """All of its fields travel; nothing is queued here."""
    url = next(iter(elsewhere(0)))
    state = State(job(), places=EIGHT)
    [effects] = state.take(found(url, depth=2, priority=3, source="link", parent=A))
    [(partition, record)] = effects.forward.items()
    assert partition == EIGHT.of(url).partition
    assert (record.fwd, record.urls) == (1, [u.FoundUrl(url, 2, 3, "link", A)])
    assert state.urls() == []


def test_urls_that_are_at_home_stay() -> None:
    """One record, one URL of this partition and three others: a record each where they belong."""
    others = list(elsewhere(0))[:3]
    home = next(url for n in range(100) if EIGHT.of(url := f"http://site{n}.com/").partition == 0)
    state = State(job(), places=EIGHT)
    [effects] = state.take(found(home, *others))
    assert state.urls() == [home]
    assert sorted(url.url for record in effects.forward.values() for url in record.urls or []) == sorted(others)
    assert {EIGHT.of(url).partition for url in others} == effects.forward.keys()


def test_a_url_misplaced_again_is_dead() -> None:
    """Producers that disagree would send it round for ever."""
    url = next(iter(elsewhere(0)))
    [effects] = State(job(), places=EIGHT).take(found(url, fwd=1))
    assert effects.forward == {}
    assert url in effects.dead[0]


def test_a_misplaced_url_of_an_unknown_job_is_forwarded() -> None:
    """It is parked where it belongs, not here."""
    state = State(places=EIGHT)
    [effects] = state.take(found(next(iter(elsewhere(0)))))
    assert len(effects.forward) == 1
    assert list(state.rows.scan(b"p")) == []


# ---------------------------------------------------------------------- in passing


@pytest.mark.parametrize("dedup", ["exact", "bloom"])
def test_a_lowered_url_is_told_to_nobody(dedup: str) -> None:
    """With a Bloom filter no depth is kept, so a nearer one is simply known."""
    state = State(job(max_depth=5, dedup=dedup), found(A, depth=3), found(A, depth=1))
    assert len(state.queued()) == 1


def test_a_host_with_nothing_queued_says_so() -> None:
    """Its row stays and counts none."""
    state = State(job(), found(A), done(A, sequence(1)))
    state.checkpoint()
    assert [r.read_host_queue(value).queued for _, value in state.rows.scan(b"g")] == [0]
