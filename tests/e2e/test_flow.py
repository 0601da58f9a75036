"""Jobs that are connected with others, on a real `crawlog up` whose processes are all killed in between."""

import contextlib
import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from crawlog.streams.crash_points import VARIABLE
from tests.support.crawls import PAGES, Numbered, on_folder
from tests.support.processes import LIMIT_S, crawlog, done, until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

OPTIONS = ["-s", "network.allow_private=true", "-s", "robots.obey=false", "-s", "politeness.delay_s=0.02"]


SECRET = "s3cret"

LISTS = """
from crawlog import Spider


class Linked:
    def process_item(self, item):
        return {"links": [item["url"], None]}


class Lists(Spider):
    version = "1"
    pipelines = [Linked]

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")
"""

POINTS = ("store.writing", "store.written", "hook.calling", "hook.called")
"""A worker dies at each of them once."""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder of a running `up`."""
    monkeypatch.setenv("CRAWLOG_KAFKA__PARTITIONS", "2")
    data = tmp_path / "data"
    _up(data)
    yield data
    crawlog("down", "--data", data).communicate()


def _up(data: Path, *more: str) -> None:
    done(crawlog("up", "--data", data, "--workers", "fetch=1,parse=1", *OPTIONS, *more))


def kill_all(data: Path) -> None:
    """Kills every process of a data folder, the broker too, as a power cut of the machine would end them."""
    supervisor = psutil.Process(json.loads((data / "run" / "holder.json").read_text())["pid"])
    family = [supervisor, *supervisor.children(recursive=True), *on_folder(data)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, LIMIT_S)


def submit(data: Path, name: str, *words: object) -> None:
    """Submits a job."""
    done(crawlog("submit", *words, "--job", name, *OPTIONS, "--data", data, "--json"))


def job(data: Path, name: str) -> dict[str, Any]:
    """A job, as `jobs show` has it."""
    out, err = crawlog("jobs", "show", name, "--json", "--data", data).communicate()
    assert out, err
    shown: dict[str, Any] = json.loads(out)
    return shown


class Receiver(http.server.ThreadingHTTPServer):
    """A webhook that fails twice, then takes what it gets.

    Attributes:
        got: The posts in turn: what they hold, and whether their signatures are right.
    """

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, Any], bool]] = []
        super().__init__(("127.0.0.1", 0), Post)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}/done"


class Post(http.server.BaseHTTPRequestHandler):
    """A request to a receiver."""

    server: Receiver

    def do_POST(self) -> None:
        """Fails, or not."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        wanted = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        is_signed = self.headers["X-Crawlog-Signature"] == f"sha256={wanted}"
        self.server.got.append((json.loads(body), is_signed))
        self.send_response(503 if len(self.server.got) < 3 else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_chain_group_last_job_feed_and_calls_of_their_ends_survive_a_kill_of_everything(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amid the rows of a feed, which pipelines make; then between two failures of a call. Workers die at POINTS."""
    lists, other, chained, last = (Numbered(last=number) for number in (PAGES // 2, 2, 2, 2))
    sites = (lists, other, chained, last)
    lists.holds_from, receiver = PAGES // 4, Receiver()
    spent, done_file = fleet.parent / "spent", fleet.parent / "done.json"
    spent.mkdir()
    (fleet.parent / "lists.py").write_text(LISTS)
    spider = ("--spider", fleet.parent / "lists.py")
    try:
        submit(fleet, "lists", lists.url, *spider, "--group", "night", "--on-finish", receiver.url)
        submit(fleet, "fed", "--feed", "lists:links", "--group", "night", "-o", "fed.jsonl", "--on-finish", "keep")
        submit(fleet, "other", other.url, "--group", "night", "--after", "fed")
        submit(fleet, "chained", chained.url, "--after", "lists", "--after", "other")
        submit(fleet, "last", last.url, "--after", "group:night", "--after", "chained")
        assert job(fleet, "last")["reason"] == "after lists, fed, other and 1 more"
        until(lambda: len(lists.pages()) >= lists.holds_from, "half of the pages")
        kill_all(fleet)
        lists.goes_on.set()
        assert not other.asked
        monkeypatch.setenv(VARIABLE, f"{spent} " + " ".join(f"{point}:1" for point in POINTS))
        targets = json.dumps({"keep": f"cp /dev/stdin {done_file}"})
        hooks = ("-s", f"hooks.secret={SECRET}", "-s", f"hooks.targets={targets}")
        _up(fleet, *hooks)
        until(lambda: receiver.got, "the first post, which fails")
        kill_all(fleet)
        _up(fleet, *hooks)
        until(lambda: last.asked["/2"], "the last job")  # a look at a site costs less than a command
        until(lambda: job(fleet, "last")["state"] == "finished", "its end")
        views = {name: job(fleet, name) for name in ("lists", "fed", "other", "chained", "last")}
        assert {one["state"] for one in views.values()} == {"finished"}
        ends = {name: one["ended_at"] for name, one in views.items()}
        assert ends["lists"] < ends["fed"] < ends["other"] < ends["chained"] < ends["last"]
        urls = [f"{lists.origin}/{number}" for number in range(1, PAGES // 2 + 1)]
        rows = [json.loads(line)["url"] for line in (fleet / "outputs/fed/fed.jsonl").read_text().splitlines()]
        assert sorted(rows) == sorted(urls)
        assert [site.pages().keys() for site in sites[1:]] == [{"/1", "/2"}] * 3
        assert views["fed"]["feeds"][0]["state"] == "complete"
        until(lambda: len(receiver.got) > 2, "the third post")
        until(lambda: job(fleet, "lists")["hooks"][0]["state"] == "taken", "the webhook")
        assert {(told["job"], told["state"], told["counts"]["fetched"], signed) for told, signed in receiver.got} == {
            ("lists", "finished", PAGES // 2, True)
        }
        until(done_file.exists, "the file of the command")
        until(lambda: job(fleet, "fed")["hooks"][0]["state"] == "taken", "the command")
        told = json.loads(done_file.read_bytes())
        assert [(one["name"], one["state"], one["rows"]) for one in told["outputs"]] == [
            ("fed.jsonl", "complete", PAGES // 2)
        ]
        assert {file.name for file in spent.iterdir()} == set(POINTS)
    finally:
        receiver.shutdown()
        receiver.server_close()
        for site in sites:
            site.close()
