"""A site that changes between two runs of one command: 304s, changes of items, and the same state after a kill -9."""

import json
from collections import Counter
from pathlib import Path

import pytest

from crawlog.commands.page_changes import changes_of
from crawlog.streams.crash_points import VARIABLE
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from crawlog.streams.state.verify import verify
from tests.support.cluster import log_of
from tests.support.processes import crawlog, done, ended
from tests.support.sites import Answer, Threaded

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SPIDER = """
from crawlog import Spider
class Shop(Spider):
    follow_links = True
    def parse(self, response):
        if price := response.css("b::text").get():
            yield {"url": response.url, "price": price}
"""


def test_a_second_run_asks_for_each_page_again_and_names_what_changed(
    tmp_path: Path, cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parse worker is killed once its change is in the log; pages that a seed's `itag` names are due at once."""
    prices = {"/1": "10", "/2": "20", "/3": "30"}

    def page(path: str) -> Answer:
        if path == "/":
            return 200, "text/html", "".join(f'<a href="{name}">' for name in prices).encode()
        return (200, "text/html", f"<b>{prices[path]}</b>".encode()) if path in prices else (404, "text/html", b"")

    site = Threaded(page, etag=lambda path: f'"{prices[path]}"' if path in prices else "")
    (tmp_path / "shop.py").write_text(SPIDER)
    values = {"network.allow_private": "true", "politeness.delay_s": 0.01, "recrawl.age": "30d"} | log_of(cluster)
    settings = [f"-s{key}={value}" for key, value in values.items()]
    where = ["--data", tmp_path / "data", "--job", "shop", *settings]
    output = tmp_path / "rows.jsonl"
    run = ["run", f"{site.origin}/", "--spider", tmp_path / "shop.py", "-o", output, "--json", *where]
    code, summary, err = ended(crawlog(*run, cwd=tmp_path))
    assert (code, summary["reason"]) == (0, "watching"), err

    prices |= {"/1": "11", "/4": "40"}
    del prices["/2"]
    seeds = tmp_path / "seeds.jsonl"
    urls = [f"{site.origin}/{name}" for name in ("", "1", "2", "3")]
    seeds.write_text("".join(json.dumps({"url": url, "itag": "v2"}) + "\n" for url in urls))
    done(crawlog("seed", seeds, *where, cwd=tmp_path))
    spent = tmp_path / "spent"
    spent.mkdir()
    monkeypatch.setenv(VARIABLE, f"{spent} parse.changes.acknowledged:1")
    asked = len(site.heard)
    code, summary, err = ended(crawlog(*run, cwd=tmp_path))
    site.close()
    assert (code, summary["reason"]) == (0, "watching"), err
    assert [file.name for file in spent.iterdir()] == ["parse.changes.acknowledged"]
    again = Counter(path for path, _ in site.heard[asked:] if path != "/robots.txt")
    assert again == Counter(["/", "/1", "/2", "/3", "/4"])
    conditional = {path for path, headers in site.heard[asked:] if "If-None-Match" in headers}
    assert conditional == {"/1", "/2", "/3"}
    found = [(one.change, one.url[-2:], one.items) for one in changes_of(cluster, "shop")]
    assert sorted(found[:3]) == [
        ("new", f"/{name}", [{"url": (None, f"{site.origin}/{name}"), "price": (None, f"{name}0")}]) for name in "123"
    ]
    assert sorted(found[3:]) == [
        ("changed", "/1", [{"price": ("10", "11")}]),
        ("gone", "/2", [{"url": (f"{site.origin}/2", None), "price": ("20", None)}]),
        ("new", "/4", [{"url": (None, f"{site.origin}/4"), "price": (None, "40")}]),
    ]
    rows = {row["url"][-1]: row["price"] for row in map(json.loads, output.read_text().splitlines())}
    assert rows == {"1": "11", "3": "30", "4": "40"}
    state = load(values | {"run.data": str(tmp_path / "data")})
    assert all(verdict.equal for verdict in verify(state, tmp_path / "data" / "state"))
