"""`crawlog recrawl` and `jobs retry`: which URLs are due again, and that they keep their requests."""

import time
from typing import Any

import msgspec
import pytest

from crawlog.cli.recrawling import _lines
from crawlog.commands.recrawl import Recrawl, RecrawlChoice, recrawl
from crawlog.schemas import urls as u
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.control import write_job
from crawlog.streams.errors import InvalidState, Misconfigured, UnknownName
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url import Places

SITE = "http://a.example"
PARTITIONS = 2
POST = RequestRecord("POST", body=b"a=1", callback="item", kwargs={"page": 3})
NOW = time.time()


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return PARTITIONS


def result(**fields: Any) -> u.Result:
    """The result of an attempt."""
    return u.Result(**{"url": f"{SITE}/", "row": 0, "status": "fetched", "http": 200, "at": NOW, **fields})


@pytest.mark.parametrize(
    ("choice", "fields", "is_taken"),
    [
        (RecrawlChoice(failed=True), {"status": "failed", "http": None, "reason": "dns"}, True),
        (RecrawlChoice(failed=True), {"http": 503}, True),
        (RecrawlChoice(failed=True), {"http": 404}, False),
        (RecrawlChoice(statuses=("403", "5xx")), {"http": 403}, True),
        (RecrawlChoice(statuses=("403", "5xx")), {"http": 599}, True),
        (RecrawlChoice(statuses=("403", "5xx")), {"http": 401}, False),
        (RecrawlChoice(statuses=("tls",)), {"status": "failed", "http": None, "reason": "tls: too old"}, True),
        (RecrawlChoice(statuses=("robots",)), {"status": "refused", "http": None, "reason": "robots"}, True),
        (RecrawlChoice(before=NOW - 60), {"at": NOW - 61}, True),
        (RecrawlChoice(before=NOW - 60), {"at": NOW - 60}, False),
        (RecrawlChoice(failed=True, before=NOW - 60), {"http": 503}, False),
        (RecrawlChoice(failed=True, statuses=("404",)), {"http": 404}, True),
    ],
)
def test_a_choice_takes_results_by_failure_status_and_age(
    choice: RecrawlChoice, fields: dict[str, Any], is_taken: bool
) -> None:
    """Failures and statuses are alternatives; an age narrows them."""
    one = result(**fields)
    assert choice.takes(one, one.at, {429, 503}) == is_taken


@pytest.mark.parametrize("choice", [RecrawlChoice(), RecrawlChoice(statuses=("6xx",)), RecrawlChoice(statuses=("4x",))])
def test_a_choice_of_nothing_and_a_wrong_status_are_refused(choice: RecrawlChoice) -> None:
    """Nobody asks for a whole site again by a slip."""
    with pytest.raises(Misconfigured, match="5xx"):
        choice.check()


def test_the_lines_name_what_is_left_out_and_the_next_command() -> None:
    """A named URL without a result, those that are due already, and a job that is stopped."""
    done = Recrawl("j", False, "stopped", asked=2, of=9, waiting=1, lost=1, unknown=[f"{SITE}/x"])
    assert _lines(done) == [
        f"{SITE}/x has no result in job j; `crawlog why {SITE}/x` has the reason",
        "1 URL asked for again before, without a new result yet: left out",
        "1 URL left out: the log no longer holds the request. Seed it anew.",
        "2 of 9 URLs with a result in job j asked for again",
        "the job is stopped: they wait for `crawlog jobs resume j`",
    ]
    assert _lines(Recrawl("j", True, asked=1, of=1))[-1] == "1 of 1 URL with a result in job j would be asked for again"


class Log:
    """A log with one job, whose records a test writes."""

    def __init__(self, settings: Settings) -> None:
        ensure_topics(settings)
        self.settings, self.topics = settings, Topics(settings.kafka.prefix)
        self.producer = Producer(settings, "test")
        self.number = Places(PARTITIONS).of(f"{SITE}/").partition
        self.write_job()

    def write_job(self, **changes: Any) -> None:
        """The job's record."""
        spec = u.JobSpec(scope=u.ScopeSpec(names=("a.example",)), **changes)
        write_job(self.settings, self.producer, self.topics, "j", spec, 0)

    @property
    def end(self) -> int:
        """Of the partition of the site."""
        return log_bounds(self.settings, self.topics.urls, [self.number])[self.number][1]

    def write(self, record: u.UrlsRecord) -> int:
        """Writes a record of crawl.urls; returns the row of its first URL."""
        end = self.end
        self.producer.send(self.topics.urls, u.encode(record), partition=self.number)
        assert self.producer.flush(30)
        return end << 16

    def find(self, *founds: u.FoundUrl, epoch: int = 0) -> int:
        """Found URLs; returns the row of the first."""
        return self.write(u.UrlsRecord("j", epoch, urls=list(founds)))

    def finish(self, *results: u.Result, epoch: int = 0) -> None:
        """Results of attempts."""
        self.write(u.UrlsRecord("j", epoch, results=list(results)))

    def recrawl(self, choice: RecrawlChoice, *, execute: bool = True) -> Recrawl:
        """The command."""
        return recrawl(self.settings, "j", choice, execute=execute, report=lambda _: None)

    def founds_from(self, start: int) -> list[u.FoundUrl]:
        """What was found from an offset on."""
        records = read_records(self.settings, self.topics.urls, self.number, start, self.end)
        return [found for record in records for found in u.decode(record.value()).urls or ()]


@pytest.mark.broker
def test_failed_urls_are_due_again_with_their_requests_once(cluster: Settings) -> None:
    """A POST with its callback; the newest result counts; who was asked for again is left out until it is done."""
    log = Log(cluster)
    posted = u.FoundUrl(f"{SITE}/form", 1, 5, "link", f"{SITE}/", id=77, request=POST)
    row = log.find(u.FoundUrl(f"{SITE}/ok"), u.FoundUrl(f"{SITE}/mended"), posted, u.FoundUrl(f"{SITE}/late"))
    log.finish(
        result(url=f"{SITE}/ok", row=row),
        result(url=f"{SITE}/mended", row=row + 1, http=503),
        result(url=f"{SITE}/form", row=row + 2, http=503, id=77, depth=1, priority=5),
        result(url=f"{SITE}/late", row=row + 3, status="failed", http=None, reason="dns", next_at=NOW, attempt=1),
    )
    log.finish(result(url=f"{SITE}/mended", row=row + 1))
    log.finish(result(url=f"{SITE}/other", row=row + 4, http=503, id=9))  # its found is not in the log
    choice = RecrawlChoice(failed=True)
    before = log.end
    planned = log.recrawl(choice, execute=False)
    assert (planned.is_plan, planned.asked, planned.of, planned.lost, log.end) == (True, 1, 4, 1, before)
    done = log.recrawl(choice)
    assert (done.asked, done.of, done.waiting) == (1, 4, 0)
    assert log.founds_from(before) == [msgspec.structs.replace(posted, again="fetched", again_http=503)]
    again = log.recrawl(choice)
    assert (again.asked, again.waiting) == (0, 1)
    log.finish(result(url=f"{SITE}/form", row=before << 16, http=503, id=77, depth=1, priority=5))
    assert log.recrawl(choice).asked == 1


@pytest.mark.broker
def test_named_urls_are_due_again_and_unknown_ones_are_named(cluster: Settings) -> None:
    """In any spelling, whatever their result; only the partition of each is read."""
    log = Log(cluster)
    row = log.find(u.FoundUrl(f"{SITE}/ok", source="link"), u.FoundUrl(f"{SITE}/queued"))
    log.finish(result(url=f"{SITE}/ok", row=row))
    done = log.recrawl(RecrawlChoice(urls=("HTTP://A.example:80/ok#top", f"{SITE}/queued")))
    assert (done.asked, done.of, done.unknown) == (1, 1, [f"{SITE}/queued"])
    assert log.founds_from(row >> 16)[-1] == u.FoundUrl(f"{SITE}/ok", source="link", again="fetched", again_http=200)
    done = log.recrawl(RecrawlChoice(urls=(f"{SITE}/ok",)))
    assert (done.asked, done.waiting, done.unknown) == (0, 1, [])
    with pytest.raises(Misconfigured, match="ftp"):
        log.recrawl(RecrawlChoice(urls=("ftp://a.example/",)))


@pytest.mark.broker
def test_results_that_a_rewind_took_back_do_not_count(cluster: Settings) -> None:
    """Of the whole crawl to some record: the result before it counts again. Of the job: none is left."""
    log, old = Log(cluster), RecrawlChoice(before=NOW + 60)
    row = log.find(u.FoundUrl(f"{SITE}/1"), u.FoundUrl(f"{SITE}/2"))
    log.finish(result(url=f"{SITE}/1", row=row, http=503))
    start = log.end
    log.finish(result(url=f"{SITE}/1", row=row), result(url=f"{SITE}/2", row=row + 1))
    log.write(u.UrlsRecord(epoch=1, rewind=u.Rewind(start)))
    log.finish(result(url=f"{SITE}/2", row=row + 1))  # of the epoch before: a worker that was stopped
    assert [log.recrawl(choice, execute=False).asked for choice in (old, RecrawlChoice(failed=True))] == [1, 1]
    log.write(u.UrlsRecord("j", 2, rewind=u.Rewind()))
    assert log.recrawl(old, execute=False).of == 0


@pytest.mark.broker
def test_a_job_that_cannot_go_on_is_refused(cluster: Settings) -> None:
    """One that is cancelled, and one that does not exist."""
    log = Log(cluster)
    log.write_job(rev=2, state="cancelled")
    with pytest.raises(InvalidState, match="--fresh"):
        log.recrawl(RecrawlChoice(failed=True))
    with pytest.raises(UnknownName):
        recrawl(cluster, "k", RecrawlChoice(failed=True), execute=True, report=lambda _: None)
