"""Deployed code under `crawlog up`: versions side by side, and what strangers write into the topics."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from crawlog.commands import projects
from crawlog.commands.dead import listed
from crawlog.schemas import items
from crawlog.schemas.control import JobCopy
from crawlog.schemas.job_orders import CodeRef
from crawlog.schemas.urls import FoundUrl, JobSpec, RequestRules, ScopeSpec, UrlsRecord, encode
from crawlog.streams.cluster import log_bounds
from crawlog.streams.control import read_control, write_job
from crawlog.streams.dead_letters import LetterChoice
from crawlog.streams.log import Producer, Topics, partition_count, read_partitions
from crawlog.streams.settings import Settings
from crawlog.streams.url import Places
from tests.support.crawls import there
from tests.support.processes import crawlog, done, ended, until
from tests.support.sites import Answer, Threaded

__all__ = ["there"]  # a fixture

pytestmark = [pytest.mark.broker, pytest.mark.slow]

QUICK = ("-s", "network.allow_private=true", "-s", "service.enabled=false")

SPIDERS = """
import crawlog
from number import NUMBER

class Shop(crawlog.Spider):
    name = "shop"

    def parse(self, response):
        yield {{"version": NUMBER, "path": response.url.rpartition("/")[2]}}

class Touching(crawlog.Spider):
    name = "touching"

    def parse(self, response):
        open({touched!r}, "w").close()
        yield {{"touched": True}}
"""


@pytest.fixture
def site() -> Iterator[Threaded]:
    """Pages without links."""

    def answer(_path: str) -> Answer:
        return 200, "text/html", b"<title>a page</title>"

    found = Threaded(answer)
    yield found
    found.close()


class Fleet:
    """What `crawlog up` started, and records written by hand."""

    def __init__(self, data: Path, there: list[str], cluster: Settings) -> None:
        self.data = data
        code, out, told = ended(crawlog("up", "--data", data, *there, *QUICK))
        assert code == 0, (out, told)
        assert "stop it with   `crawlog down`" in out["reason"]
        self.settings = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": data})})
        self.topics = Topics(self.settings.kafka.prefix)
        self.count = partition_count(self.settings)
        self._producer = Producer(self.settings, "test")

    def job(self, name: str, spider: str, ref: CodeRef | None, **more: object) -> None:
        """A job's record."""
        spec = JobSpec(
            spider=spider,
            code=ref,
            scope=ScopeSpec(kind="any"),
            requests=RequestRules(delay_s=0, robots=False, allow_private=True),
        )
        write_job(self.settings, self._producer, self.topics, name, msgspec.structs.replace(spec, **more))

    def seed(self, job: str, url: str) -> None:
        """A URL for a job."""
        partition = Places(self.count).of(url).partition
        self._producer.send(self.topics.urls, encode(UrlsRecord(job, 0, urls=[FoundUrl(url)])), partition=partition)
        assert self._producer.flush(10)

    def rows(self, job: str) -> list[object]:
        """The rows of a job."""
        ranges = log_bounds(self.settings, self.topics.items, list(range(self.count)))
        records = [items.decode(one.value()) for one in read_partitions(self.settings, self.topics.items, ranges)]
        return [json.loads(bytes(row)) for record in records if record.job == job for row in record.items]

    def errors(self, job: str) -> list[str]:
        """Of the open dead letters of a job."""
        found = listed(self.settings, LetterChoice("", job, ""), 50, handled=False)
        return [letter.error for letter in found.shown]

    def down(self) -> None:
        """Stop it."""
        done(crawlog("down", "--data", self.data))


@pytest.fixture
def fleet(tmp_path: Path, there: list[str], cluster: Settings) -> Iterator[Fleet]:
    """On a data folder of this test."""
    found = Fleet(tmp_path / "data", there, cluster)
    yield found
    found.down()


def code_in(folder: Path, number: int, touched: Path) -> Path:
    """A folder with two spiders."""
    folder.mkdir(exist_ok=True)
    (folder / "spiders.py").write_text(SPIDERS.format(touched=str(touched)))
    (folder / "number.py").write_text(f"NUMBER = {number}\n")
    return folder


def gives(look: Callable[[], list[object]], wanted: list[object]) -> Callable[[], bool]:
    """Whether a look gives what is wanted."""
    return lambda: look() == wanted


def test_jobs_run_the_version_that_they_pin_and_no_code_of_strangers(
    fleet: Fleet, site: Threaded, tmp_path: Path, there: list[str]
) -> None:
    """A version deployed anew changes nothing for running jobs; records of strangers become dead letters."""
    touched = tmp_path / "touched"
    folder = code_in(tmp_path / "shop", 1, touched)
    code, out, told = ended(crawlog("deploy", folder, "--version", "v", "--json", "--data", fleet.data, *there))
    assert code == 0, told
    one = CodeRef(out["project"], out["version"], out["sha256"])
    fleet.job("one", "shop", one)
    fleet.seed("one", f"{site.origin}/a")
    until(gives(lambda: fleet.rows("one"), [{"version": 1, "path": "a"}]), "a row of the first version")

    two = projects.deploy(fleet.settings, code_in(folder, 2, touched), "shop", "v")
    assert two.sha256 != one.sha256
    fleet.job("two", "shop", CodeRef("shop", "v", two.sha256))
    fleet.seed("two", f"{site.origin}/b")
    fleet.seed("one", f"{site.origin}/c")
    until(gives(lambda: fleet.rows("two"), [{"version": 2, "path": "b"}]), "a row of the second version")
    until(lambda: {"version": 1, "path": "c"} in fleet.rows("one"), "one more row of the first version")

    stranger = fleet.settings.model_copy(
        update={"run": fleet.settings.run.model_copy(update={"data": tmp_path / "stranger"})}
    )
    foreign = projects.deploy(stranger, code_in(folder, 3, touched), "shop", "v3")
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(touched)!r}, 'w').close()\n")
    quotes = projects.deploy(fleet.settings, Path(__file__).parent.parent / "projects" / "quotes", "quotes", "1")
    pinned = CodeRef("quotes", "1", quotes.sha256)
    fleet.job("foreign", "touching", CodeRef("shop", "v3", foreign.sha256))
    fleet.job("renamed", "touching", CodeRef("other", "v", two.sha256))
    fleet.job("named", str(evil), CodeRef("shop", "v", two.sha256))
    fleet.job("alone", str(evil), None)
    fleet.job("wire", "pages", pinned, scrapy=(("ITEM_PIPELINES", '{"evil.Pipeline": 1}'),))
    wanted = {
        "foreign": "not in security.trusted_keys",
        "renamed": "no such version",
        "named": "no spider",
        "alone": "spider_folders",
        "wire": "ITEM_PIPELINES: it names code",
    }
    for number, job in enumerate(wanted):
        fleet.seed(job, f"{site.origin}/{number}")
    for job, text in wanted.items():
        until(lambda job=job: bool(fleet.errors(job)), f"a dead letter of {job}")  # type: ignore[misc]  # its own job
        assert text in fleet.errors(job)[0]
        assert fleet.rows(job) == []
    assert not touched.exists()


@pytest.mark.long
def test_a_schedule_runs_the_version_that_was_deployed_last(
    fleet: Fleet, site: Threaded, tmp_path: Path, there: list[str]
) -> None:
    """From the next run on; a run that goes on keeps its own. With a pattern each spider that fits is a job."""

    def deploy(number: int) -> None:
        folder = code_in(tmp_path / "shop", number, tmp_path / "touched")
        done(crawlog("deploy", folder, "--version", f"v{number}", "--data", fleet.data, *there))

    def rows(number: int) -> list[str]:
        """Runs that gave rows of a version."""
        control = read_control(fleet.settings, fleet.topics)
        jobs = sorted(one.job for one in control.of(JobCopy) if one.spec.by == "schedule s")
        return [job for job in jobs if {"version": number, "path": "a"} in fleet.rows(job)]

    deploy(1)
    rule = ["--every", "2s", "--overlap", "queue"]
    of_run = ["submit", f"{site.origin}/a", "--project", "shop", "--spider", "sho*", *QUICK[:2]]
    done(crawlog("schedule", "add", "s", *rule, "--data", fleet.data, *there, "--", *of_run))
    until(lambda: rows(1), "rows of the first version")
    deploy(2)
    until(lambda: rows(2), "rows of the second version")
    done(crawlog("schedule", "remove", "s", "--data", fleet.data, *there))
    assert max(rows(1)) < min(rows(2))
    assert all(job.endswith("Z-shop") for job in rows(2))
