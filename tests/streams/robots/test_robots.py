"""robots.txt as Google reads it: real files, other projects' cases, and the leniencies by name."""

import base64
import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.robots import robots
from crawlog.streams.robots.robots import MAX_BYTES, READ_BYTE_S, READING_SHARE, RobotsRules, SharedRules
from crawlog.streams.robots.robots_patterns import MAX_PIECES
from crawlog.streams.url.canonical import serialise
from tests.support.corpora import real_robots


def allowed(text: str | bytes, path: str = "/x", token: str = "crawlog") -> bool:
    """The verdict about a path."""
    body = text if isinstance(text, bytes) else text.encode()
    return RobotsRules.parse(body).allowed(f"http://h.test{path}", token)[0]


def test_real_files_get_googles_verdicts(testdata: Path) -> None:
    """At least 99.5 % of all (file, agent, URL) verdicts; 34,500 of them in 0.5 s."""
    verdicts = [is_googles for _, is_googles in real_robots(testdata)]
    assert len(verdicts) > 30_000
    assert verdicts.count(False) <= 0.005 * len(verdicts)


OTHERWISE = {
    "test_unicode_url_and_useragent": "the product token is at the beginning of the user agent (RFC 9309 2.2.1)",
    "test_grouping_unknown_keys": "unknown lines end no group, as Google reads it",
    "test_generosity": "a key of two words needs its colon; a star within a token is no wildcard",
    "test_special_symbols_dual_behaviour": "a dollar at the end is the end, and nothing else",
    "test_with_absolute_urls": "a pattern begins with a slash or a star",
    "test_user_agent_precedence": "a token is matched whole, not by its beginning (RFC 9309 2.2.1)",
    "test_no_leading_user_agent": "rules before the first user agent belong to nobody",
    "test_skip_malformed_line": "a rule of two words is read without its colon, as Google reads it",
}
"""Cases of other projects in which the standard, or Google, decides otherwise."""


def raw_of(case: dict[str, Any]) -> bytes:
    """The file of a case, as text or as bytes."""
    text: str | None = case.get("robots_txt")
    return base64.b64decode(case["robots_txt_base64"]) if text is None else text.encode()


def test_other_projects_cases_are_decided_alike(testdata: Path) -> None:
    """Protego's and reppy's, but for those above; what is asked as a path is asked of a host."""
    protego = json.loads((testdata / "robots-protego" / "unit_cases.json").read_text(encoding="utf-8"))
    reppy = json.loads((testdata / "robots-reppy" / "cases.json").read_text(encoding="utf-8"))
    asked = [
        (c["test"], c["robots_txt"].encode(), *c["args"], c["expected"]) for c in protego if c["func"] == "can_fetch"
    ]
    asked += [(c["test"], raw_of(c), c["url"], c["user_agent"], c["expected"]) for c in reppy if c["kind"] == "allowed"]
    wrong = {
        test.replace(".", "::").split("::")[-1].partition("[")[0]
        for test, text, url, agent, expected in asked
        if not url.startswith("ftp:")
        and RobotsRules.parse(text).allowed(serialise(url, "http://h.test/"), agent)[0] != expected
    }
    assert len(asked) > 400
    assert wrong <= OTHERWISE.keys()


def test_no_bytes_make_it_raise(testdata: Path) -> None:
    """What a fuzzer found interesting elsewhere."""
    for path in sorted((testdata / "robots-fuzz-seeds" / "corpus").iterdir()):
        rules = RobotsRules.parse(path.read_bytes())
        rules.allowed("http://h.test/", "crawlog")
        rules.crawl_delay_s("crawlog")


@given(st.binary(max_size=400))
def test_any_bytes_are_a_file(body: bytes) -> None:
    """A verdict and a delay that is a number, always."""
    rules = RobotsRules.parse(b"User-agent: *\nDisallow: " + body)
    assert rules.allowed("http://h.test/a", "crawlog")[0] in (True, False)
    assert (rules.crawl_delay_s("crawlog") or 0.0) >= 0.0


@pytest.mark.parametrize(
    ("text", "path", "verdict"),
    [
        ("", "/x", True),
        ("User-agent: *\nDisallow: /", "/robots.txt", True),
        ("\ufeffUser-agent: *\nDisallow: /", "/x", False),
        ("User-agent: *\nDisallow: /x".encode("utf-16"), "/x", False),
        ("User-agent: *\rDisallow: /", "/x", False),
        ("user-agent : *\r\nDISALLOW : /x # why", "/x", False),
        ("Useragent: *\nDisalow: /x", "/x", False),
        ("User-agent *\nDisallow /x", "/x", False),
        ("User-agent: *\nDisallow:", "/x", True),
        ("Disallow: /", "/x", True),
        ("User-agent: *\nDisallow: /x\nAllow: /x", "/x", True),
        ("User-agent: *\nAllow: /\nDisallow: /x", "/xy", False),
        ("User-agent: *\nDisallow: /x\nAllow: /xy", "/xyz", True),
        ("User-agent: *\nDisallow: /X", "/x", True),
        ("User-agent: *\nDisallow: /*.php$", "/a/b.php", False),
        ("User-agent: *\nDisallow: /*.php$", "/a/b.php5", True),
        ("User-agent: *\nDisallow: /a*b*c", "/a-b-c-d", False),
        ("User-agent: *\nDisallow: /a*b*c", "/a-c-b", True),
        ("User-agent: *\nDisallow: /a$b", "/a$bc", False),
        ("User-agent: *\nDisallow: /x$", "/x", False),
        ("User-agent: *\nDisallow: *x*$", "/axb", False),
        ("User-agent: *\nDisallow: /%62%61z", "/ba%7a", False),
        ("User-agent: *\nDisallow: /a<b c", "/a%3Cb%20c", False),
        ("User-agent: *\nDisallow: /a%3cb", "/a%3cb", False),
        ("User-agent: *\nDisallow: /{a}`^", "/%7Ba%7D%60%5E", False),
        ("User-agent: *\nDisallow: /a%7Cb?'{x}", "/a|b?%27{x}", False),
        ("User-agent: *\nDisallow: /a%2Ab%24", "/a*b$", False),
        ("User-agent: *\nDisallow: /a%2Ab", "/axb", True),
        ("User-agent: mj12bot\nDisallow: /", "/x", True),
        ("User-agent: *\nDisallow: /é", "/%C3%A9", False),
        ("User-agent: *\nDisallow: /%c3%a9", "/%C3%A9", False),
        ("User-agent: *\nDisallow: /\nAllow: /index.html", "/", True),
        ("User-agent: *\nDisallow: /?q", "/?q=1", False),
        ("User-agent: CrawLog\nDisallow: /\n\nUser-agent: *\nAllow: /", "/x", False),
        ("User-agent: crawlog/2.1\nDisallow: /", "/x", False),
        ("User-agent: crawl\nDisallow: /", "/x", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: crawlog\nDisallow:", "/x", True),
        ("User-agent: a\nUser-agent: crawlog\nDisallow: /", "/x", False),
        (
            "User-agent: crawlog\nDisallow: /a\n\nUser-agent: b\nDisallow: /\n\nUser-agent: crawlog\nDisallow: /x",
            "/x",
            False,
        ),
        ("User-agent: a\nCrawl-delay: 1\nUser-agent: crawlog\nDisallow: /", "/x", False),
        ("User-agent: a\nSitemap: http://s/\nNoindex: /\nUser-agent: crawlog\nDisallow: /", "/x", False),
        ("<html><body>User-agent: *</body></html>", "/x", True),
        ("User-agent: *\nDisallow: /x\0y", "/xz", False),
        ("User-agent: crawlog\0x\nDisallow: /x", "/x", False),
        ("\0User-agent: *\n \0 \nDisallow: /x", "/x", False),
    ],
)
def test_a_file_is_read_as_google_reads_it(text: str | bytes, path: str, verdict: bool) -> None:
    """Marks, line ends, typos, groups, wildcards, escapes, and who wins."""
    assert allowed(text, path) is verdict


def test_a_line_is_cut_where_google_cuts_it() -> None:
    """After 16,663 bytes: what is lost of a longer pattern no longer tells pages apart."""
    full = "/" + "a" * (16_663 - len("Disallow: /"))
    for pattern in (full, full + "a"):
        assert allowed(f"User-agent: *\nDisallow: {pattern}", full) is False
        assert allowed(f"User-agent: *\nDisallow: {pattern}", full[:-1]) is True


def test_a_token_with_digits_is_another_token() -> None:
    """The standard knows letters only; real crawlers have digits."""
    rules = RobotsRules.parse(b"User-agent: mj12bot\nDisallow: /\n\nUser-agent: mj\nDisallow: /mj")
    assert rules.allowed("http://h.test/x", "MJ12bot")[0] is False
    assert rules.allowed("http://h.test/mj", "MJ6bot")[0] is False
    assert rules.allowed("http://h.test/x", "MJ6bot")[0] is True


def test_the_deciding_line_is_named() -> None:
    """For the done record and `crawlog why`."""
    rules = RobotsRules.parse("User-agent: *\nDisallow: /p%2fé\nAllow: /p/ok".encode())
    assert rules.allowed("http://h.test/p%2F%C3%A9", "crawlog") == (False, "Disallow: /p%2fé")
    assert rules.allowed("http://h.test/p/ok", "crawlog") == (True, "Allow: /p/ok")
    assert rules.allowed("http://h.test/z", "crawlog") == (True, "")


@pytest.mark.parametrize(
    ("lines", "delay_s"),
    [
        ("Crawl-delay: 2", 2.0),
        ("crawl-delay: 0.5", 0.5),
        ("Crawl delay: 4 # seconds", 4.0),
        ("Crawldelay 4", 4.0),
        ("Crawl-delay: 1\nCrawl-delay: 3", 3.0),
        ("Crawl-delay: -1", None),
        ("Crawl-delay: soon", None),
        ("Crawl-delay: nan", None),
        ("Crawl-delay: inf", None),
        ("Crawl-delay: 1e9", 1e9),
        ("Disallow: /", None),
    ],
)
def test_a_crawl_delay_is_a_number_or_nothing(lines: str, delay_s: float | None) -> None:
    """The longest of several; garbage is no wish."""
    assert RobotsRules.parse(f"User-agent: *\n{lines}".encode()).crawl_delay_s("crawlog") == delay_s


def test_a_delay_is_for_the_agents_above_it() -> None:
    """Where no rule stands between agents, the rules below are for all of them, but one crawler's delay is its own."""
    rules = RobotsRules.parse(
        b"User-agent: a\nCrawl-delay: 60\n\nUser-agent: *\nUser-agent: b\nCrawl-delay: 1\nDisallow: /x"
    )
    assert [rules.crawl_delay_s(token) for token in ("a", "b", "crawlog")] == [60.0, 1.0, 1.0]
    assert not any(rules.allowed("http://h.test/x", token)[0] for token in ("a", "b", "crawlog"))


def test_our_own_groups_delay_counts_alone() -> None:
    """A group for us replaces the one for all, its delay too."""
    rules = RobotsRules.parse(b"User-agent: *\nCrawl-delay: 9\nDisallow:\n\nUser-agent: crawlog\nDisallow: /x")
    assert rules.crawl_delay_s("crawlog") is None
    assert rules.crawl_delay_s("other") == 9.0


def test_sitemaps_stand_outside_of_groups() -> None:
    """In the order of the file."""
    rules = RobotsRules.parse(b"Sitemap: http://s/1\nUser-agent: *\nSite-map: http://s/2\nDisallow: /")
    assert rules.sitemaps == ["http://s/1", "http://s/2"]


def test_a_file_that_is_missing_or_away_has_its_verdict() -> None:
    """RFC 9309 2.3.1.3 and 2.3.1.4."""
    assert RobotsRules.parse(b"").allowed("http://h.test/x", "crawlog") == (True, "")
    assert RobotsRules.disallow_all().allowed("http://h.test/x", "crawlog") == (False, "Disallow: /")
    assert RobotsRules.disallow_all().allowed("http://h.test/robots.txt", "crawlog") == (True, "")


@pytest.mark.parametrize(
    "line",
    [
        b"Disallow: /" + b"*a" * 400 + b"b",
        b"Disallow: /" + b"*" * 400_000,
        b"Disallow: /" + b"a*" * 250_000,
        b"Allow:*" + b"a" * 100 + b"b",
    ],
)
def test_wildcards_without_end_are_matched_in_linear_time(line: bytes) -> None:
    """One line or as many as fit: no pattern makes the search go back."""
    body = b"User-agent: *\n" + b"\n".join([line] * (500_000 // len(line))) + b"\nDisallow: /x"
    rules = RobotsRules.parse(body)
    for _ in range(100):
        rules.allowed("http://h.test/" + "a" * 2000, "crawlog")


def test_wildcards_beyond_the_limit_do_not_count() -> None:
    """The first ones of the file do, and every rule without a wildcard."""
    body = b"User-agent: *\n" + b"".join(b"Allow:*%dx\n" % n for n in range(MAX_PIECES)) + b"Disallow:*y\nDisallow:/z"
    assert allowed(body, "/z") is False
    assert allowed(body, "/y") is True


def test_a_wildcard_and_a_plain_rule_of_one_length_are_a_tie() -> None:
    """Which Allow wins, whichever it is."""
    assert allowed("User-agent: *\nDisallow: /ab\nAllow: /a*", "/ab") is True
    assert allowed("User-agent: *\nAllow: /ab\nDisallow: /a*", "/ab") is True
    assert allowed("User-agent: *\nDisallow: /*b\nAllow: *ab", "/ab") is True


def test_a_huge_file_is_cut() -> None:
    """A million rules: those behind 500 KiB do not count."""
    body = b"User-agent: *\n" + b"".join(b"Disallow: /%07d*x\n" % n for n in range(1_000_000))
    assert allowed(body, "/0000000-x") is False
    assert allowed(body, "/0999999-x") is True


def test_hosts_with_the_same_file_share_its_rules() -> None:
    """One of 500 KiB takes 0.15 s to read, and a platform's hosts are thousands."""
    shared = SharedRules()
    body = b"User-agent: *\nDisallow: /no"
    rules = shared.rules(body, "crawlog")
    assert shared.rules(b"" + body, "crawlog") is rules
    assert shared.rules(b"User-agent: *\nDisallow:", "crawlog") is not rules


def ruled(number: int, line: bytes = b"Disallow: /%07x\n", size: int = 4_000) -> bytes:
    """One host's own file."""
    return b"User-agent: *\n" + b"".join(line % (number + n * 7919) for n in range(size // len(line)))


def test_the_rules_of_all_hosts_have_a_bound_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those let go, which were not asked since others were, nothing is left, and they allow nothing either."""
    monkeypatch.setattr(robots, "HELD_BYTES", 400_000)
    shared = SharedRules()
    used = shared.rules(ruled(1), "crawlog")
    tracemalloc.start()
    for number in range(2, 30):
        rules = shared.rules(ruled(number), "crawlog")
        used.allowed("http://h.test/x", "crawlog")
        assert tracemalloc.get_traced_memory()[0] < 600_000
    tracemalloc.stop()
    assert not used.is_gone
    assert not rules.is_gone
    assert shared.size_bytes <= 400_000
    first = shared.rules(ruled(2), "crawlog")  # read again
    for number in range(100, 130):
        shared.rules(ruled(number), "crawlog")
    assert first.is_gone
    with pytest.raises(AssertionError, match="let go"):
        first.allowed("http://h.test/x", "crawlog")


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (b"Disallow: /%07x\n", 33_000),
        pytest.param(b"Disallow: /%07x\n", 500_000, marks=pytest.mark.long),
        pytest.param(b"Disallow: /*%07x" + "ж".encode() * 90 + b"\n", 500_000, marks=pytest.mark.long),
        (b"Disallow: /*a*%07x*c$\n", 100_000),
        (b"Allow: /%07x/index.html\n", 40_000),
        (b"Sitemap: http://h/%07x\n", 100_000),
    ],
)
def test_what_rules_take_is_known(line: bytes, size: int) -> None:
    """Within a factor of two, or the bound would be none."""
    body = ruled(1, line, size)
    shared = SharedRules()
    tracemalloc.start()
    rules = shared.rules(body, "crawlog")
    gc.collect()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 < rules.size_bytes / held_bytes < 2


def test_large_files_that_are_read_again_have_a_tenth_of_the_time() -> None:
    """Two hundred hosts whose rules do not fit would else be all that the loop does."""
    shared = SharedRules()
    files = [ruled(number, size=MAX_BYTES) for number in range(10)]
    now, read = 100.0, 0
    while read < len(files):
        wait_s = shared.wait_s(files[read], "crawlog", now)
        now += wait_s
        read += not wait_s
    reading_s = sum(map(len, files[:-1])) * READ_BYTE_S
    assert now - 100 == pytest.approx(reading_s / READING_SHARE)
    assert shared.wait_s(ruled(99), "crawlog", now) == 0
    shared.rules(files[5], "crawlog")
    assert shared.wait_s(files[5], "crawlog", now) == 0


def test_rules_that_are_kept_for_one_token_answer_as_before_and_hold_nothing_else() -> None:
    """Neither lines to somebody else nor repeated ones."""
    body = b"User-agent: other\n" + b"".join(b"Disallow: /%d\n" % n for n in range(3000))
    body += b"User-agent: crawlog\nCrawl-delay: 3\n" + b"Disallow: /no\n" * 3000
    tracemalloc.start()
    rules = SharedRules().rules(body, "crawlog")
    gc.collect()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [rules.allowed(f"http://h.test{path}", "crawlog")[0] for path in ("/no", "/5")] == [False, True]
    assert rules.crawl_delay_s("crawlog") == 3
    assert held_bytes < 50_000  # 1.3 MB when all is kept


def test_rules_that_are_kept_for_one_token_say_nothing_to_another() -> None:
    """They would allow everything, and count as that token's from then on."""
    rules = SharedRules().rules(b"User-agent: *\nDisallow: /", "crawlog")
    with pytest.raises(AssertionError, match="other tokens"):
        rules.allowed("http://h.test/x", "another")
    assert (rules.is_for("crawlog"), rules.is_for("another")) == (True, False)
