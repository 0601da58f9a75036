"""Cookies by the rules of RFC 6265bis; what is right was compared with tough-cookie by 40,000 dates and 13,000 jars."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.requests import CookieGiven
from crawlog.streams.session.cookies import MAX_PAIR, MOST_BYTES, MOST_COOKIES, CookieJar, cookie_refusal, date, read

NOW = 1_700_000_000.0
AT = 784111777.0


def sent(url: str, *said: str | tuple[str, str], later_s: float = 0.0) -> str:
    """What a request goes out with after Set-Cookie headers, each of the URL beside it or of the same URL."""
    jar = CookieJar()
    for each in said:
        of, header = (url, each) if isinstance(each, str) else each
        jar.keep(of, [header], NOW)
    return jar.header(url, NOW + later_s)


@pytest.mark.parametrize(
    ("header", "cookie"),
    [
        ("a=1", "a=1"),
        (" a = 1 2 ; x", "a=1 2"),
        ("a=b=c", "a=b=c"),
        ("a=", "a="),
        ("a", "a"),
        ("=a", "a"),
        ("", ""),
        (" = ", ""),
        ('a="x y"', 'a="x y"'),
        ('a="x;y"', 'a="x'),
        ("[k]{}(),=1,2", "[k]{}(),=1,2"),
        ("é=ü", "é=ü"),
        ("a=\udcff", ""),
        ("a=1\x01", ""),
        ("a=1; Path=/\x7f", ""),
        ("a\tb=\t1\t", "a\tb=1"),
        (f"a={'1' * (MAX_PAIR - 1)}", f"a={'1' * (MAX_PAIR - 1)}"),
        (f"a={'1' * MAX_PAIR}", ""),
        (f"a={'é' * (MAX_PAIR // 2)}", ""),
        ("a=1; Domain", "a=1"),
        ("a=1; domain=.A.com; PATH=/", "a=1"),
        ("a=1; Path=/x; Path=/", "a=1"),
        ("a=1; Path=/; Path=/x", ""),
        (f"a=1; Path=/x{'y' * 1100}", "a=1"),
        ("a=1; Path=x", "a=1"),
        ("a=1; Secure", ""),
        ("a=1; HttpOnly; SameSite=Strict; Partitioned; no=such", "a=1"),
    ],
)
def test_a_header_is_read_as_browsers_read_it(header: str, cookie: str) -> None:
    """Sent back to the page that set it, byte for byte, or not kept at all."""
    assert sent("http://a.com/", header) == cookie


@pytest.mark.parametrize(
    ("age", "is_kept", "is_kept_later"),
    [
        ("", True, True),
        ("Max-Age=10", True, False),
        ("Max-Age=0", False, False),
        ("Max-Age=-1", False, False),
        ("Max-Age=x", True, True),
        ("Max-Age=+5", True, True),
        ("Max-Age=1e3", True, True),
        ("Max-Age=", True, True),
        (f"Max-Age={'9' * 500}", True, True),
        ("Max-Age=0; Max-Age=10", True, False),
        ("Expires=Thu, 01 Jan 1970 00:00:00 GMT", False, False),
        ("Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=10", True, False),
        ("Max-Age=10; Expires=Thu, 01 Jan 1970 00:00:00 GMT", True, False),
        ("Expires=never", True, True),
        ("Expires=Tue, 14 Nov 2023 22:13:25 GMT", True, False),
    ],
)
def test_a_cookie_ends_at_its_age_or_its_date(age: str, is_kept: bool, is_kept_later: bool) -> None:
    """Max-Age is stronger; what makes no sense is left out."""
    held = sent("http://a.com/", f"a=1; {age}"), sent("http://a.com/", f"a=1; {age}", later_s=10)
    assert held == ("a=1" if is_kept else "", "a=1" if is_kept_later else "")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", AT),
        ("Sunday, 06-Nov-94 08:49:37 GMT", AT),
        ("Sun Nov  6 08:49:37 1994", AT),
        ("08:49:37 1994 november 6th +0900", AT),
        ("6x Novx 94x 8:49:37x", AT),
        ("06 Nov 69 00:00:00", 3_150_921_600.0),
        ("06 Nov 70 00:00:00", 26697600.0),
        ("30 Feb 1994 00:00:00", None),
        ("00 Feb 1994 00:00:00", None),
        ("01 Feb 1600 00:00:00", None),
        ("01 Feb 1994 24:00:00", None),
        ("01 Feb 1994 00:00:600", None),
        ("01 Feb 19941 00:00:00", None),
        ("01 Feb 1994", None),
        ("1994-11-06T08:49:37Z", None),
        ("", None),
    ],
)
def test_a_date_is_found_in_its_tokens(text: str, at: float | None) -> None:
    """In any order, two digits of the year being of this century up to 69."""
    assert date(text) == at


@pytest.mark.parametrize(
    ("url", "domain", "to", "is_sent"),
    [
        ("http://www.a.com/", "", "http://www.a.com/", True),
        ("http://www.a.com/", "", "http://a.com/", False),
        ("http://www.a.com/", "", "http://x.www.a.com/", False),
        ("http://www.a.com/", "a.com", "http://b.a.com/", True),
        ("http://www.a.com/", ".a.com", "http://a.com/", True),
        ("http://www.a.com/", "..a.com", "http://www.a.com/", False),
        ("http://www.a.com/", "a.com.", "http://www.a.com/", False),
        ("http://www.a.com/", "ww.a.com", "http://www.a.com/", False),
        ("http://www.a.com/", "x.www.a.com", "http://x.www.a.com/", False),
        ("http://www.a.com/", "com", "http://www.a.com/", False),
        ("http://www.b.co.uk/", "co.uk", "http://www.b.co.uk/", False),
        ("http://b.co.uk/", "b.co.uk", "http://www.b.co.uk/", True),
        ("http://me.github.io/", "github.io", "http://me.github.io/", False),
        ("http://github.io/", "github.io", "http://github.io/", True),
        ("http://1.2.3.4/", "1.2.3.4", "http://1.2.3.4/", True),
        ("http://1.2.3.4/", "3.4", "http://1.2.3.4/", False),
        ("http://[::1]/", "", "http://[::1]:8080/", True),
        ("http://a.com:8080/", "a.com", "https://a.com/", True),
    ],
)
def test_a_cookie_is_for_its_host_or_its_domain(url: str, domain: str, to: str, is_sent: bool) -> None:
    """Ports and schemes share; a public suffix, another domain and part of an address do not count."""
    jar = CookieJar()
    jar.keep(url, [f"a=1; Path=/; Domain={domain}" if domain else "a=1; Path=/"], NOW)
    assert jar.header(to, NOW) == ("a=1" if is_sent else "")


@pytest.mark.parametrize(
    ("set_at", "path", "to", "is_sent"),
    [
        ("/x/y", "", "/x/z", True),
        ("/x/y", "", "/x", True),
        ("/x/y", "", "/xy", False),
        ("/x", "", "/y", True),
        ("/x/", "", "/x/", True),
        ("/", "/x", "/x?y", True),
        ("/", "/x", "/x/y", True),
        ("/", "/x/", "/x", False),
        ("/", "/x", "/X", False),
        ("/", "/x", "/%78", False),
        ("/a/b?c=/d/e", "", "/a/f", True),
    ],
)
def test_a_cookie_is_for_its_path_and_what_is_below(set_at: str, path: str, to: str, is_sent: bool) -> None:
    """Compared as they are sent, not decoded; without one it is the folder of the page."""
    jar = CookieJar()
    jar.keep(f"http://a.com{set_at}", [f"a=1; Path={path}"], NOW)
    assert jar.header(f"http://a.com{to}", NOW) == ("a=1" if is_sent else "")


@pytest.mark.parametrize(
    ("url", "header", "is_kept"),
    [
        ("https://a.com/", "__Secure-a=1; Secure", True),
        ("https://a.com/", "__Secure-a=1", False),
        ("http://a.com/", "__Secure-a=1; Secure", False),
        ("https://a.com/", "__Host-a=1; Secure; Path=/", True),
        ("https://a.com/", "__hOST-a=1; Secure; Path=/", True),
        ("https://a.com/", "__Host-a=1; Secure", False),
        ("https://a.com/", "__Host-a=1; Secure; Path=/; Domain=a.com", False),
        ("https://a.com/", "__Host-a=1; Path=/", False),
        ("https://a.com/", "=__Host-a=1; Secure; Path=/", False),
        ("https://a.com/", "a=1; Secure", True),
        ("http://127.0.0.1/", "a=1; Secure", True),
        ("http://x.localhost/", "a=1; Secure", True),
        ("http://127.0.0.1.a.com/", "a=1; Secure", False),
    ],
)
def test_what_a_prefix_and_secure_promise_is_kept(url: str, header: str, is_kept: bool) -> None:
    """Over TLS, or on this machine."""
    assert bool(sent(url, header)) == is_kept


@pytest.mark.parametrize(
    ("name", "value", "header", "refusal"),
    [
        ("sid", "abc\r\n", "sid=abc", ""),
        (" sid\n", "\t a b ", "sid=a b", ""),
        ("sid", "", "sid=", ""),
        ("sid", " ", "sid=", ""),
        ("", "abc", "abc", ""),
        ("a=b", "c", "a=b=c", ""),
        ("sid", "a;b", "", "`;`"),
        ("a; b", "c", "", "`;`"),
        ("sid", "a\nb", "", "line end"),
        ("sid", "a\0", "", "control"),
        ("sid", "a\udcff", "", "control"),
        ("sid", "x" * MAX_PAIR, "", "4,096 bytes"),
        (" ", "\n", "", "neither"),
    ],
)
def test_a_cookie_of_a_request_is_sent_without_outer_blanks_or_its_refusal_is_known(
    name: str, value: str, header: str, refusal: str
) -> None:
    """What `Request` lets pass, a jar takes."""
    jar = CookieJar()
    jar.give("http://a.com/", [CookieGiven(name, value)], NOW)
    assert jar.header("http://a.com/", NOW) == header
    told = cookie_refusal(name, value)
    assert refusal in told
    assert bool(told) == bool(refusal)


def test_a_secure_cookie_is_not_sent_nor_hidden_in_the_clear() -> None:
    """Neither at its path nor below it, nor at a domain above; another path or name is no concern of it."""
    tls, plain = "https://www.a.com/x/", "http://www.a.com/x/"
    jar = CookieJar()
    jar.keep(tls, ["a=1; Secure"], NOW)
    assert (jar.header(tls, NOW), jar.header(plain, NOW)) == ("a=1", "")
    jar.keep(plain, ["a=2", "a=3; Path=/x/y", "a=4; Domain=a.com", "a=; Max-Age=0"], NOW)
    assert (jar.header(tls, NOW), jar.header(plain, NOW)) == ("a=1", "")
    jar.keep(plain, ["a=5; Path=/", "b=6"], NOW)
    assert (jar.header(tls, NOW), jar.header(plain, NOW)) == ("a=1; b=6; a=5", "b=6; a=5")


def test_a_secure_cookie_that_is_over_bars_none_of_its_name() -> None:
    """It is gone, as after RFC 6265bis 5.7, whoever sets the next one."""
    tls, plain = "https://a.com/x", "http://a.com/x"
    jar = CookieJar()
    jar.keep(tls, ["sid=1; Secure; Max-Age=60; Path=/"], NOW)
    jar.keep(plain, ["sid=2; Path=/"], NOW + 59)
    assert jar.header(plain, NOW + 59) == ""
    jar.keep(plain, ["sid=3; Path=/"], NOW + 60)
    assert jar.header(plain, NOW + 60) == "sid=3"


def test_longer_paths_go_first_then_older_cookies() -> None:
    """A cookie that is renewed keeps its place; one of a name for each path and domain."""
    said = ["a=1; Path=/", "b=2; Path=/", "c=3; Path=/x", "a=4; Path=/", "a=5; Path=/x", "a=6; Path=/; Domain=a.com"]
    assert sent("http://a.com/x/y", *said) == "c=3; a=5; a=4; b=2; a=6"


def test_a_cookie_that_is_deleted_is_gone_from_its_own_path_only() -> None:
    """Both the date and the age do it."""
    said = ["a=1; Path=/", "a=2; Path=/x", "a=; Path=/; Max-Age=0", "b=1", "b=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"]
    assert sent("http://a.com/x", *said) == "a=2"


def test_a_jar_has_an_end_and_what_is_in_it_stays() -> None:
    """Ten thousand cookies of a host displace no session; what has ended or was deleted makes room."""
    jar = CookieJar()
    jar.keep("http://a.com/", ["sid=1", *(f"n{n}={n}; Max-Age=10" for n in range(10_000))], NOW)
    assert jar.header("http://a.com/", NOW).startswith("sid=1; n0=0; ")
    assert jar.header("http://a.com/", NOW).count("=") == MOST_COOKIES
    jar.keep("http://a.com/", ["late=1"], NOW)
    assert "late" not in jar.header("http://a.com/", NOW)
    jar.keep("http://a.com/", ["n0=; Max-Age=0", "late=1", "sid=2"], NOW)
    assert jar.header("http://a.com/", NOW).startswith("sid=2; n1=1; ")
    jar.keep("http://a.com/", ["new=1"], NOW + 10)
    assert jar.header("http://a.com/", NOW + 10) == "sid=2; late=1; new=1"


def test_large_cookies_end_a_jar_sooner() -> None:
    """10,000 domains with 100 cookies of 4 KiB each would be 4 GB."""
    jar = CookieJar()
    jar.keep("http://a.com/", [f"n{n}={'x' * 4000}" for n in range(100)], NOW)
    assert 3 * 4000 < len(jar.header("http://a.com/", NOW)) <= MOST_BYTES
    jar.keep("http://a.com/", [f"n{n}=y" for n in range(10)], NOW)
    assert jar.header("http://a.com/", NOW) == "; ".join(f"n{n}=y" for n in range(10))


def test_cookies_that_grow_do_not_outgrow_a_jar() -> None:
    """What does not fit is not taken: the one that was there stays; what has an end makes room in time."""
    long = "x" * 4000
    jar = CookieJar()
    jar.keep("http://a.com/", [f"n{n}=y; Max-Age=5" for n in range(10)], NOW)
    jar.keep("http://a.com/", [f"n{n}={long}; Max-Age=5" for n in range(10)], NOW)
    assert jar.header("http://a.com/", NOW).count(long) == 4
    assert jar.header("http://a.com/", NOW).endswith("; n8=y; n9=y")
    jar.keep("http://a.com/", [f"n9={long}"], NOW + 1)
    assert jar.header("http://a.com/", NOW + 1).endswith("; n9=y")
    jar.keep("http://a.com/", [f"n9={long}"], NOW + 10)
    assert jar.header("http://a.com/", NOW + 10) == f"n9={long}"


@given(
    st.lists(
        st.one_of(
            st.text(max_size=40),
            st.lists(
                st.sampled_from(
                    ["a", "=", ";", " ", "\t", "é", "Domain=", "Path=/", "Max-Age=9", "Expires=1", "Secure", "\udcff"]
                )
            ).map("".join),
        ),
        max_size=4,
    )
)
def test_no_header_breaks_a_jar_and_what_it_sends_can_be_sent(headers: list[str]) -> None:
    """Whatever a server says."""
    jar = CookieJar()
    jar.keep("https://www.a.com/x/y", headers, NOW)
    value = jar.header("https://www.a.com/x/y", NOW)
    value.encode()
    assert not any(ord(char) < 32 and char != "\t" for char in value)
    assert all(read(header) is None or header.strip(" \t") for header in headers)


_set = st.sampled_from(
    ["a=1", "a=2; Path=/x", "a=; Max-Age=0", "b=3; Domain=a.com", "b=4; Max-Age=9", "c=5; Secure", "d"]
)


@given(st.lists(st.tuples(st.lists(_set, max_size=4), st.integers(0, 20)), max_size=6))
def test_a_jar_that_takes_the_changes_of_another_sends_the_same(answers: list[tuple[list[str], int]]) -> None:
    """Also where it goes by way of rows."""
    jar, other, now = CookieJar(), CookieJar(), NOW
    for headers, later_s in answers:
        now += later_s
        jar.keep("https://www.a.com/x/y", headers, now)
        other = CookieJar(other.stored())
        other.apply(jar.changes(), now)
        assert jar.changes() == ()
        assert other.header("https://www.a.com/x/y", now) == jar.header("https://www.a.com/x/y", now)


def test_a_jar_names_only_what_changed() -> None:
    """A cookie set to what it is, or removed though nobody knows it, is no change."""
    jar = CookieJar()
    jar.keep("https://a.com/", ["a=1", "b=2", "gone=; Max-Age=0"], NOW)
    assert [(one.name, one.value, one.domain, one.wide) for one in jar.changes()] == [
        ("a", "1", "a.com", False),
        ("b", "2", "a.com", False),
    ]
    jar.keep("https://a.com/", ["a=1", "b=; Max-Age=0"], NOW)
    assert [(one.name, one.gone) for one in jar.changes()] == [("b", True)]


def test_a_jar_takes_what_a_request_brings_along() -> None:
    """For the whole host unless it says a path; one for another domain or one that could not be sent is left out."""
    jar = CookieJar()
    given = [
        CookieGiven("a", "1"),
        CookieGiven("b", "2", domain=".a.com", path="/x"),
        CookieGiven("c", "3", domain="other.com"),
        CookieGiven("d", "4\r\nHost: x"),
        CookieGiven("e;f", "5"),
    ]
    jar.give("https://www.a.com/deep/page", given, NOW)
    assert jar.header("https://www.a.com/x/y", NOW) == "b=2; a=1"
    assert jar.header("https://other.a.com/x", NOW) == "b=2"
