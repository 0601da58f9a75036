"""Lines of the index: pywb's own library makes the same keys."""

import random
import warnings

import pytest

from crawlog.streams.url import InvalidUrl, serialise
from crawlog.streams.warc import cdxj

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from surt import surt as archives_surt

PARTS = [*"abZ019/.%?&=;()-_~+#@!$'*,:[]{}|^` \"<>é", "%20", "%2F", "%25", "..", "./", "//", "%C3%A9", "%ff", "www1."]
SESSION = "0123456789abcdef0123456789abcdef"
GIVEN = (
    "http://www.example.com/a/b/",
    "https://www2.example.com:443/A/B?b=2&a=1",
    "http://example.com:8080/x?",
    "http://127.0.0.1:8000/x",
    "http://[::1]:80/x",
    f"http://a.com/p?PHPSESSID={SESSION}&x=1",
    f"http://a.com/p?x=1&sid={SESSION}",
    "http://a.com/(S(0123456789abcdef01234567))/x.aspx?a=b",
    "http://a.com/(0123456789abcdef01234567)/x.aspx",
    "http://a.com/x?cfid=1&cftoken=2&y=3",
    "http://bücher.example/ü?=&a",
    "http://a.com/%2e%2e/x%2fy%2f",
)


def _urls() -> list[str]:
    chosen = random.Random(4)
    made = (
        f"http://{chosen.choice(['a.com', 'www.a.com'])}/{''.join(chosen.choices(PARTS, k=9))}" for _ in range(2000)
    )
    found = []
    for one in (*GIVEN, *made):
        try:
            found.append(serialise(one))
        except InvalidUrl:
            continue
    return found


def test_a_key_is_that_of_the_archives_library() -> None:
    """Else pywb looks a page up by another key than the one it stands under."""
    for url in _urls():
        assert cdxj.surt(url) == archives_surt(url), url


@pytest.mark.parametrize("fields", [{"url": "http://a.com/"}, {"url": "http://a.com/é", "mime": 'a"b'}])
def test_a_line_is_read_as_it_was_written(fields: dict[str, str]) -> None:
    """The date of a capture comes back to the second."""
    line = cdxj.line("http://a.com/é", "2026-11-29T05:05:56Z", fields)
    assert line.startswith(b"com,a)/%c3%a9 20261129050556 {")
    assert cdxj.read(line) == ("2026-11-29T05:05:56Z", fields)
