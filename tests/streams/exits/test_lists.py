"""Lists of proxies, as providers write them."""

import pytest

from crawlog.streams.exits.lists import read_list

LIST = """
# of Monday
http://ann:p%40ss@one.test:3128
berlin=socks5h://two.test:1080
10.0.0.7:8080
10.0.0.8:8080:ann:p@s:s
[2001:db8::1]:3128
10.0.0.7:8080
"""


def test_a_list_has_a_proxy_a_line() -> None:
    """As the setting has it, or as HOST:PORT with or without a login; each once."""
    found = [(way.name, way.proxy and way.proxy.url, way.proxy and way.proxy.password) for way in read_list(LIST)]
    assert found == [
        ("one.test:3128", "http://one.test:3128", "p@ss"),
        ("berlin", "socks5h://two.test:1080", ""),
        ("10.0.0.7:8080", "http://10.0.0.7:8080", ""),
        ("10.0.0.8:8080", "http://10.0.0.8:8080", "p@s:s"),
        ("[2001:db8::1]:3128", "http://[2001:db8::1]:3128", ""),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [("", "no proxies"), ("# none\n", "no proxies"), ("10.0.0.7:80\nhush hush\n", "line 2"), ("<html>", "line 1")],
)
def test_a_wrong_list_is_refused_by_its_line(text: str, error: str) -> None:
    """The message does not repeat the line."""
    with pytest.raises(ValueError, match=error) as refused:
        read_list(text)
    assert "hush" not in str(refused.value)
