"""WHATWG serialisation against the web platform's tests, and the canonical rules."""

import json
from pathlib import Path

import ada_url
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from crawlog.agents.client.client import sent_as
from crawlog.schemas.urls import CanonicalRules
from crawlog.streams.url.canonical import _SERIALISED, Canonicaliser, InvalidUrl, fingerprint, plain, serialise

DEFAULT = Canonicaliser(CanonicalRules())
FILES = ("urltestdata.json", "ada_long_urltestdata.json", "urltestdata-javascript-only.json")


def serialised(url: str, base: str | None = None) -> str | None:
    """The serialisation, or None for an invalid URL."""
    try:
        return serialise(url, base)
    except InvalidUrl:
        return None


def test_the_web_platform_tests_pass(testdata: Path) -> None:
    """Every case: http(s) serialised exactly without its fragment, everything else refused."""
    wrong, asked = [], 0
    for name in FILES:
        for case in json.loads((testdata / "url-wpt" / name).read_text(encoding="utf-8")):
            if isinstance(case, str):
                continue
            href = None if case.get("failure") else case["href"]
            wanted = href.split("#")[0] if href and href.startswith(("http:", "https:")) else None
            asked += 1
            if serialised(case["input"], case.get("base")) != wanted:
                wrong.append(case["input"])
    assert asked > 450
    assert wrong == []


@pytest.mark.parametrize("name", ["IdnaTestV2.json", "toascii.json"])
def test_names_beyond_ascii_are_what_the_standard_says(testdata: Path, name: str) -> None:
    """Both IDNA tables, asked without a base: the fast parser must not answer for these."""
    wrong = []
    for case in json.loads((testdata / "url-wpt" / name).read_text(encoding="utf-8")):
        if isinstance(case, str):
            continue
        wanted = f"http://{case['output']}/x" if case["output"] else None
        if serialised(f"http://{case['input']}/x") != wanted:
            wrong.append(case["input"])
    assert wrong == []


@pytest.mark.parametrize(
    "url", ["", "relative", "mailto:a@b.c", "javascript:x", "ftp://a/", "http://", "http://a b/", "http://[x]/", "//a/"]
)
def test_what_cannot_be_fetched_is_invalid(url: str) -> None:
    """No scheme, another scheme, or no URL."""
    with pytest.raises(InvalidUrl):
        serialise(url)


def test_a_lone_surrogate_is_read_as_the_replacement_character() -> None:
    """WHATWG parses scalar values; a page can hold what is none."""
    assert serialise("http://a/\ud800") == "http://a/%EF%BF%BD"


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://a/?utm_source=x", "http://a/"),
        ("http://a/?utm_source=x&b=1", "http://a/?b=1"),
        ("http://a/?b=1&utm_source=x&c=%2f&gclid=2", "http://a/?b=1&c=%2f"),
        ("http://a/?gclid", "http://a/"),
        ("http://a/?gclidx=1", "http://a/?gclidx=1"),
        ("http://a/?xutm_source=1", "http://a/?xutm_source=1"),
        ("http://a/?b=utm_source=1", "http://a/?b=utm_source=1"),
        ("http://a/?", "http://a/?"),
        ("http://a/?z=2&&a=1&", "http://a/?z=2&&a=1&"),
        ("HTTP://A:80/../b#utm_source=1", "http://a/b"),
    ],
)
def test_tracking_parameters_go_and_the_rest_stays(url: str, canonical: str) -> None:
    """Byte for byte, and with the last parameter goes the question mark."""
    assert DEFAULT.canonical(url) == canonical


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://u:p@a.com/", "http://a.com/"),
        ("https://u@a.com:8443/x?y=@z", "https://a.com:8443/x?y=@z"),
        ("http://u:p%40ss@[::1]:81/", "http://[::1]:81/"),
        ("http:\\\\u:p@a.com\\x", "http://a.com/x"),
        ("http://a.com/@u", "http://a.com/@u"),
        ("http://a.com./", "http://a.com/"),
        ("http://A.com.:81/x./", "http://a.com:81/x./"),
        ("http://u@a.com.", "http://a.com/"),
        ("http://b\u00fccher.example\u3002/", "http://xn--bcher-kva.example/"),
        ("http://127.0.0.1./", "http://127.0.0.1/"),
        ("http://0x7f.1./", "http://127.0.0.1/"),
        ("http://localhost./", "http://localhost/"),
        ("http://a.com../", "http://a.com../"),
        ("http://./", "http://./"),
    ],
)
def test_a_login_and_the_roots_dot_lead_to_the_same_page(url: str, canonical: str) -> None:
    """So a page gives nobody a login, and has one spelling; what WHATWG says of a URL alone keeps them."""
    assert DEFAULT.canonical(url) == canonical
    assert DEFAULT.canonical(canonical) == canonical


def test_without_rules_nothing_is_dropped() -> None:
    """An empty list of parameters keeps them all."""
    assert Canonicaliser(CanonicalRules(drop_params=())).canonical("http://a/?utm_source=x") == "http://a/?utm_source=x"


def test_a_name_in_the_rules_is_no_expression() -> None:
    """Only a trailing star means something."""
    canonicaliser = Canonicaliser(CanonicalRules(drop_params=("a.c", "(x")))
    assert canonicaliser.canonical("http://a/?abc=1&a.c=2&(x=3") == "http://a/?abc=1"


EVERY_RULE = CanonicalRules(
    drop_sessions=True, sort_query=True, index_files=("index.html", "index.php"), drop_www=True, drop_slash=True
)


@pytest.mark.parametrize(
    ("rule", "url", "canonical"),
    [
        ("drop_sessions", "http://a/x;jsessionid=1A2B?q=1", "http://a/x?q=1"),
        ("drop_sessions", "http://a/x?phpsessid=0a1b2c3d&q=1", "http://a/x?q=1"),
        ("drop_sessions", "http://a/(S(lit3py55t21z5v55vlm25s55))/x", "http://a/x"),
        ("drop_sessions", "http://a/.;jsessionid=1", "http://a/"),
        ("drop_sessions", "http://a/x;sid=1a2b3c4d/y", "http://a/x/y"),
        ("drop_sessions", "http://a/story;sid=7/view", "http://a/story;sid=7/view"),
        ("drop_sessions", "http://a/x?a=1;sid=1a2b3c4d&page=2", "http://a/x?a=1;sid=1a2b3c4d&page=2"),
        ("drop_sessions", "http://a/?sid=news&q=sid=0a1b2c3d", "http://a/?sid=news&q=sid=0a1b2c3d"),
        ("drop_sessions", "http://a/wiki/X_(disambiguation)/y", "http://a/wiki/X_(disambiguation)/y"),
        ("sort_query", "http://a/?b=2&a=3&a=1&", "http://a/?&a=3&a=1&b=2"),
        ("index_files", "http://a/x/index.html?q", "http://a/x/?q"),
        ("index_files", "http://a/myindex.html", "http://a/myindex.html"),
        ("drop_www", "http://www.a.com:81/", "http://a.com:81/"),
        ("drop_www", "http://www.com/", "http://www.com/"),
        ("drop_www", "http://www../", "http://www../"),
        ("drop_www", "http://www.co.uk/", "http://www.co.uk/"),
        ("drop_slash", "http://a/x//?q=/", "http://a/x?q=/"),
        ("drop_slash", "http://a/", "http://a/"),
    ],
)
def test_a_rule_does_one_thing_and_is_off_by_default(rule: str, url: str, canonical: str) -> None:
    """Each alone; without it the URL stays."""
    alone = CanonicalRules(**{rule: getattr(EVERY_RULE, rule)})
    assert Canonicaliser(alone).canonical(url) == canonical
    assert DEFAULT.canonical(url) in (url, serialise(url))


PIECES = st.lists(
    st.sampled_from(
        ["/", "index.html", ";jsessionid=1", "(S(12345678))", "a", ".", "..", "?", "&", "sid=123456", "b=1"]
    )
)


@given(PIECES, st.sampled_from(["a.com", "www.a.com", "www.www.a.com", "www.co.uk", "www.com:80", "1.2.3.4"]))
def test_all_rules_together_come_to_an_end(pieces: list[str], host: str) -> None:
    """What one leaves may concern another; asked again, nothing changes, and it is what is sent."""
    canonicaliser = Canonicaliser(EVERY_RULE)
    url = canonicaliser.canonical(f"http://{host}/{''.join(pieces)}")
    assert canonicaliser.canonical(url) == url
    assert serialise(url) == url


@given(st.sampled_from(["http://a.com/", "https://b.com/x/y?z"]), st.text(max_size=30))
def test_what_is_queued_is_what_is_sent(base: str, href: str) -> None:
    """Byte for byte, a question mark with nothing behind it too."""
    try:
        url = DEFAULT.canonical(href, base)
    except InvalidUrl:
        return
    assert f"{url[: url.index('/', 8)]}{sent_as(url).raw_path_qs}" == url


@given(st.text(alphabet="ab0x1/.@:?\u3002-[", max_size=16))
def test_a_host_of_any_spelling_is_canonical_once_it_was_made_so(rest: str) -> None:
    """What is left of it without login and dot is a URL as it is."""
    try:
        url = DEFAULT.canonical(f"http://{rest}")
    except InvalidUrl:
        return
    assert DEFAULT.canonical(url) == url == serialise(url)


@given(st.text(alphabet="ab/.?#%:@;&=[]^~|\\\t 1é", max_size=30))
def test_the_fast_parser_says_what_the_standards_says(rest: str) -> None:
    """Wherever `serialise` trusts it."""
    for url in (f"http://{rest}", f"http://h.test/{rest}"):
        try:
            expected: str | None = ada_url.normalize_url(url).partition("#")[0]
        except ValueError:
            expected = None
        assert serialised(url) == expected


@given(st.text(alphabet="ab0x-n.", max_size=12), st.text(alphabet="aA.%2eE/?&=@:;,+*()$!_~-'", max_size=14))
def test_a_url_that_is_taken_as_it_is_written_is_its_own_serialisation(host: str, rest: str) -> None:
    """By the standard's own parser, and without login or final dot."""
    url = f"https://{host}/{rest}"
    if _SERIALISED.fullmatch(url):
        assert ada_url.normalize_url(url) == plain(url) == url


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_canonical_url_is_its_own_canonical_url(path: str, query: str) -> None:
    """So a URL read back from the log is the same page."""
    url = DEFAULT.canonical(f"http://example.com/{path}?utm_a=1&{query}")
    assert DEFAULT.canonical(url) == url


@given(st.text(max_size=30))
def test_an_absolute_url_needs_no_base(path: str) -> None:
    """The fast parser and the joining one agree."""
    url = f"https://example.com/{path}"
    assert serialise(url) == serialise(url, "http://other.example/dir/")


def test_a_fingerprint_is_xxh3_of_the_bytes() -> None:
    """64 bits, unsigned, the same on every machine."""
    assert fingerprint("http://a/") == xxhash.xxh3_64(b"http://a/").intdigest()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h.test/a/.2/.", "http://h.test/a/.2/"),
        ("http://h.test/.well-known/../x", "http://h.test/x"),
        ("http://h.test/.git/./..?q", "http://h.test/?q"),
    ],
)
def test_dot_segments_go_beside_names_with_a_dot(url: str, expected: str) -> None:
    """The fast parser leaves them there, and one page would have two spellings."""
    assert serialise(url) == expected


@pytest.mark.parametrize(
    ("written", "queued"),
    [
        ("http://EXAMPLE.com", "http://example.com/"),
        ("http://example.com:80?a=b#c", "http://example.com/?a=b"),
        ("https://u:p@Example.com/a/../b?x=%2f&y=1", "https://example.com/a/../b?x=%2f&y=1"),
        ("http://example.com/a//b/?utm_source=x&gclid=1", "http://example.com/a//b/?utm_source=x&gclid=1"),
        ("http:////a.com/x", "http://a.com/x"),
        ("http:///a.com", "http://a.com/"),
    ],
)
def test_a_verbatim_url_keeps_its_path_and_query(written: str, queued: str) -> None:
    """Scrapy requests a URL as it is written; only the host must be found."""
    assert Canonicaliser(CanonicalRules(verbatim=True)).canonical(written) == queued


@pytest.mark.parametrize("written", ["ftp://a.com/", "http://a.com/a b", "http://a.com/\r\nHost: b", "http://", "x"])
def test_a_verbatim_url_that_cannot_be_sent_is_refused(written: str) -> None:
    """As any other URL that is none."""
    with pytest.raises(InvalidUrl):
        Canonicaliser(CanonicalRules(verbatim=True)).canonical(written)
