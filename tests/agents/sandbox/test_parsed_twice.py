"""A page that is parsed twice, after a kill: the same identities, in whatever order the callback gives its outputs."""

from pathlib import Path

import pytest

from crawlog.agents.sandbox import SpiderChild
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.spiders import CallResult, PageCall, SpiderRef

OURS = """
from crawlog import Request, Spider

def form(url, fields):
    return Request(url, form=fields)
"""

THEIRS = """
from scrapy import FormRequest, Request, Spider

def form(url, fields):
    return FormRequest(url, formdata=fields)
"""

SPIDER = """
class Moody(Spider):
    name = "moody"
    calls = 0

    def parse(self, response):
        outputs = [
            Request("http://a.example/1"),
            Request("http://a.example/1", dont_filter=True),
            Request("http://a.example/2", dont_filter=True),
            form("http://a.example/post", {"n": "1"}),
            form("http://a.example/post", {"n": "2"}),
            Request("http://a.example/3", self.other, cb_kwargs={"of": 3}),
            Request(response.url, dont_filter=True),
        ]
        Moody.calls += 1
        return outputs if Moody.calls % 2 else outputs[::-1]

    def other(self, response, of):
        pass
"""


def identities(result: CallResult) -> dict[tuple[int, str], bytes]:
    """What each identity stands for."""
    assert result.error == ""
    return {(one.id, one.url): one.request.body if one.request else b"" for one in result.requests}


@pytest.mark.parametrize("head", [OURS, THEIRS], ids=["crawlog", "scrapy"])
def test_another_order_gives_the_same_identities(head: str, tmp_path: Path) -> None:
    """Two POSTs to one URL are two, and a page that asks for itself moves."""
    file = tmp_path / "moody.py"
    file.write_text(head + SPIDER)
    page = PageMeta("http://a.example/", "j", http=200, content_type="text/html")
    with SpiderChild(SpiderRef(f"{file}:Moody", job="j", spec=JobSpec())) as child:
        first, second = (identities(child.page(PageCall(page, b"<p>", is_whole=True))) for _ in range(2))
        loop = PageMeta("http://a.example/", "j", http=200, content_type="text/html", id=77)
        third = identities(child.page(PageCall(loop, b"<p>", is_whole=True)))
    assert first == second
    assert len(first) == 7
    unfiltered = {url for identity, url in first if (identity, url) not in third}
    assert unfiltered == {"http://a.example/1", "http://a.example/2", "http://a.example/"}
