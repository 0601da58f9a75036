"""What an answer tells of its response's headers."""

import pytest
from multidict import CIMultiDict

from crawlog.streams.http.answer import HEADER_CHARS, Answer, note


def noted(http: int = 200, **headers: str) -> Answer:
    """An answer with such headers; `_` for `-`."""
    answer = Answer(http)
    note(answer, CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()}))
    return answer


def test_headers_are_told_whatever_their_case() -> None:
    """Those that are missing are empty."""
    answer = noted(CONTENT_TYPE="text/html", retry_after="7", link="<a>", x_robots_tag="none", refresh="0; url=b")
    told = answer.content_type, answer.retry_after, answer.link, answer.x_robots, answer.refresh
    assert told == ("text/html", "7", ("<a>",), ("none",), "0; url=b")
    nothing = noted()
    assert (nothing.content_type, nothing.retry_after, nothing.link, nothing.refresh) == ("", None, (), "")


@pytest.mark.parametrize(("http", "location"), [(301, "/x"), (302, "/x"), (308, "/x"), (200, ""), (201, ""), (304, "")])
def test_a_redirect_alone_has_a_location(http: int, location: str) -> None:
    """Elsewhere the header means something else."""
    assert noted(http, location="/x").location == location


@pytest.mark.parametrize(
    ("http", "location", "target"),
    [
        (302, "/x", "http://a.com/x"),
        (302, "//b.com?q#f", "http://b.com/?q"),
        (302, "", ""),
        (302, "ftp://b.com/", ""),
        (302, "http://[", ""),
        (None, "/x", ""),
        (200, "/x", ""),
    ],
)
def test_a_redirect_leads_to_a_url_or_nowhere(http: int | None, location: str, target: str) -> None:
    """A page that a browser sent elsewhere has a location as well, and is no redirect."""
    answer = Answer(http)
    answer.location = location
    assert answer.target("http://a.com/d/e") == target


def test_bytes_that_are_no_text_can_stand_in_a_record() -> None:
    """In a Location they are escaped, as browsers send them on."""
    answer = noted(301, location="/caf\udce9/é", content_type="text/\udce9")
    assert (answer.location, answer.content_type) == ("/caf%E9/é", "text/?")
    assert answer.content_type.encode()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["application/octet-stream", "text/html"], "text/html"),
        (["text/html, text/html; charset=utf-8"], "text/html; charset=utf-8"),
        (["text/html; charset=gbk, text/html"], "text/html;charset=gbk"),
        (['text/html;a="x,y\\"";charset="utf-8"', "TEXT/HTML;b=c", "*/*", "junk"], 'TEXT/HTML;b=c;charset="utf-8"'),
        (["text/html;charset=gbk", "text/plain", "text/html"], "text/html"),
        (["text/html;charset=gbk", "text/html;charset=utf-8"], "text/html;charset=utf-8"),
        (["text/html", "text/html; Charset = utf-8", "text/html"], "text/html;charset= utf-8"),
        (["text/html", "*/*;charset=gbk", "text/", ""], "text/html"),
        (['text/html;charset="gbk, text/plain'], 'text/html;charset="gbk, text/plain'),
        (["text/html; charset=utf-8"], "text/html; charset=utf-8"),
        (["junk", "*/*"], "junk"),
    ],
)
def test_of_several_types_the_last_valid_one_counts(values: list[str], said: str) -> None:
    """Whether they come in one header or in several; its charset is that of equal types before it (Fetch)."""
    answer = Answer(200)
    note(answer, CIMultiDict([("Content-Type", value) for value in values]))
    assert answer.content_type == said


def test_values_beyond_the_limit_are_left_out() -> None:
    """Whole ones: half a link would be another one."""
    fits, short = "<" + "x" * (HEADER_CHARS - 2 - len("<short>")) + ">", "<short>"
    answer = Answer(200)
    note(answer, CIMultiDict([("Link", fits), ("Link", short), ("Link", "<beyond>")]))
    assert answer.link == (fits, short)


@pytest.mark.parametrize(("value", "allows"), [("true", True), ("True", False), ("1", False), ("", False)])
def test_credentials_are_allowed_by_one_word(value: str, allows: bool) -> None:
    """Fetch 4.10."""
    assert noted(access_control_allow_credentials=value).allows_credentials is allows


@pytest.mark.parametrize(
    ("value", "forbids"),
    [("no-store", True), ("private, NO-STORE , max-age=0", True), ("x-no-store", False), ("", False)],
)
def test_cache_control_may_forbid_to_store_an_answer(value: str, forbids: bool) -> None:
    """Whatever the case; other directives do not."""
    assert noted(cache_control=value).forbids_store is forbids
