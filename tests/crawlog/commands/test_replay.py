"""`crawlog replay` on a real broker: stored pages parsed again, nothing asked of the site, FILE made anew."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from crawlog.cli.stored_text import meaning
from crawlog.commands.replay import ReplayOptions, replay
from crawlog.schemas import items, progress
from crawlog.schemas.control import Finished
from crawlog.schemas.job_orders import OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams.cluster import Admin
from crawlog.streams.cluster.client import committed_offsets, kafka_config, log_bounds
from crawlog.streams.control import known_job, write_control, write_job
from crawlog.streams.errors import Misconfigured
from crawlog.streams.groups.commits import REPLAY_ALL
from crawlog.streams.groups.offsets import TargetKind
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import Topics, stage_group
from crawlog.streams.settings.settings import Settings
from tests.support.crawls import PAGES, Numbered
from tests.support.dying import dying
from tests.support.processes import LIMIT_S, crawlog, ended, until

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class Crawl:
    """A crawl of the small site on the session's broker."""

    def __init__(self, site: Numbered, cluster: Settings, folder: Path) -> None:
        self.site = site
        self.said = ""
        self.settings = cluster
        self.file = folder / "rows.jsonl"
        self.spider = folder / "words.py"
        prefix = cluster.kafka.prefix
        self.where = ["--data", folder / "data", "--bootstrap", cluster.kafka.bootstrap, "-s", f"kafka.prefix={prefix}"]

    @property
    def here(self) -> Settings:
        """Settings of a command in this process."""
        run = self.settings.run.model_copy(update={"data": self.file.parent / "data"})
        return self.settings.model_copy(update={"run": run})

    def run(self, *more: object) -> dict[str, object]:
        """The same command each time; it must end with 0."""
        fast = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0"]
        code, summary, err = ended(
            crawlog("run", self.site.url, "--spider", self.spider, "-o", self.file, "--json", *self.where, *fast, *more)
        )
        assert code == 0, err
        self.said = err
        return summary

    def replay(self, *options: object) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        process = crawlog("replay", *options, *self.where)
        out, err = process.communicate()
        return process.returncode, out, err

    def write_spider(self, word: str) -> None:
        """Another version of the user's spider."""
        self.spider.write_text(SPIDER % word)

    def rows(self, word: str) -> list[str]:
        """The file's URLs, sorted; all rows are of the spider that says this word."""
        rows = [json.loads(line) for line in self.file.read_text().splitlines()]
        assert {row["word"] for row in rows} == {word}
        return sorted(row["url"] for row in rows)

    def spiders(self) -> list[tuple[str, int]]:
        """How many records of crawl.items each version of the spider has made, the older version first."""
        topic = Topics(self.settings.kafka.prefix).items
        made: Counter[str] = Counter()
        for partition, (first, end) in log_bounds(
            self.settings, topic, [*range(self.settings.kafka.partitions)]
        ).items():
            records = read_records(self.settings, topic, partition, first, end)
            made.update(items.decode(record.value()).spider for record in records)
        return list(made.items())


@pytest.fixture
def crawl(cluster: Settings, tmp_path: Path) -> Iterator[Crawl]:
    """Not begun."""
    site = Numbered()
    yield Crawl(site, cluster, tmp_path)
    site.close()


CHANGED = "the spider has changed"

SPIDER = """
from crawlog import Spider


class Words(Spider):
    follow_links = True

    def parse(self, response):
        yield {"url": response.url, "word": "%s"}
"""


@pytest.mark.long
def test_stored_pages_are_parsed_again_by_the_spider_as_it_is_now(crawl: Crawl) -> None:
    """Plan, execution, and the next run works it off; then the sink alone, with a file that was lost.

    A run that has nothing to do says how to parse the pages again, where the spider's file has changed since.
    """
    crawl.write_spider("old")
    assert crawl.run()["rows"] == PAGES
    asked, urls = crawl.site.asked.total(), crawl.rows("old")

    assert crawl.run()["reason"] == "already_finished"
    assert CHANGED not in crawl.said
    crawl.write_spider("new")
    assert crawl.run()["reason"] == "already_finished"
    assert CHANGED in crawl.said
    code, out, err = crawl.replay("--group", "parse", "--to-earliest", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert (plan["again"], plan["gone"], plan["executed"]) == (PAGES, 0, False)
    assert "dry run: nothing was changed" in err

    code, out, err = crawl.replay("--group", "parse", "--to-earliest", "--execute")
    assert code == 0, err
    assert f"{PAGES} pages are parsed again" in err
    assert out.splitlines()[-1].split()[:2] == ["total", str(PAGES)]
    summary = crawl.run()
    assert (summary["parsed"], summary["pages"], summary["rows"]) == (PAGES, 0, PAGES)
    assert crawl.rows("new") == urls
    old, new = crawl.spiders()
    assert (old[1], new[1]) == (PAGES, PAGES)
    assert crawl.run()["reason"] == "already_finished"
    assert CHANGED not in crawl.said
    assert old[0].partition("@")[0] == new[0].partition("@")[0] == "Words"

    crawl.file.write_text("lost\n")
    code, out, err = crawl.replay("--group", crawl.file, "--to-earliest", "--execute")
    assert code == 0, err
    assert f"{2 * PAGES} item records are taken again" in err
    assert crawl.run()["rows"] == PAGES
    assert crawl.rows("new") == urls
    assert crawl.site.asked.total() == asked


@pytest.mark.long
def test_a_job_alone_is_replayed(crawl: Crawl) -> None:
    """Pages of others in the same log are passed over, and rows of others stay as they were made."""
    told: list[str] = []
    crawl.write_spider("old")
    assert crawl.run("--job", "words")["rows"] == PAGES
    fast = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0"]
    code, summary, err = ended(crawlog("run", crawl.site.url, "--job", "other", "--json", *crawl.where, *fast))
    assert (code, summary["parsed"]) == (0, PAGES), err
    crawl.write_spider("new")
    crawl.run("--job", "words")
    assert "crawlog jobs update words --parse-again" in crawl.said

    code, out, err = crawl.replay("--group", "parse", "--job", "words", "--to-earliest", "--execute", "--json")
    assert (code, json.loads(out)["job"]) == (0, "words"), err
    assert f"{2 * PAGES} pages are read again: those of job words are parsed again, others passed over" in err
    for group_, job, kind, why in REFUSED:
        with pytest.raises(Misconfigured, match=why):
            replay(crawl.here, ReplayOptions(group_, kind, job=job), lambda _: None)

    summary = crawl.run("--job", "words")
    assert (summary["parsed"], summary["rows"]) == (PAGES, PAGES)
    crawl.rows("new")
    made = [count for _, count in crawl.spiders()]
    assert made == [PAGES] * 3  # old and new of the one job, and those of the other
    order = ReplayOptions("sink", "to-earliest", job="words", execute=True)
    told = meaning(replay(crawl.here, order, lambda _: None), order)
    assert f"(job words to {crawl.file}): {3 * PAGES} item records are taken again" in told[0]


REFUSED: list[tuple[str, str, TargetKind, str]] = [
    ("parse", "none", "to-earliest", "there is no job none in the log"),
    ("fetch", "words", "to-earliest", "`crawlog run --job words --fresh` begins one job again"),
    ("parse", "words", "to-latest", "pages of other jobs would be skipped too"),
    ("sink", "other", "to-earliest", "no sink of job other"),
]
"""What cannot be done for one job alone: group, job, place, the reason that is told."""


def test_a_live_group_is_waited_for_and_not_moved(cluster: Settings, tmp_path: Path) -> None:
    """While it has a member it is refused, with the member's name; once that leaves it is moved."""
    ensure_topics(cluster)
    topic = Topics(cluster.kafka.prefix).pages
    run = cluster.run.model_copy(update={"data": tmp_path})
    kafka = cluster.kafka.model_copy(update={"session_timeout_s": 1.0})
    settings = cluster.model_copy(update={"run": run, "kafka": kafka})
    parse = stage_group(settings, "parse")
    member = Consumer(kafka_config(settings) | {"group.id": parse, "client.id": "parse-7"})
    member.subscribe([topic])
    until(lambda: member.poll(0.1) or member.assignment(), "an assignment")
    told: list[str] = []
    order = ReplayOptions("parse", "to-latest", topics=[f"{topic}:1"], execute=True)
    with pytest.raises(Misconfigured, match=rf"the group is live \({parse}: parse-7\)"):
        replay(settings, order, told.append)
    assert told == [f"waiting up to 2 s for the group to empty ({parse}: parse-7)"]

    leaving = threading.Timer(0.3, member.close)
    leaving.start()
    plans = replay(settings, order, told.append).plans
    leaving.join(LIMIT_S)
    assert committed_offsets(settings, parse, topic, [0, 1]) == {1: (0, REPLAY_ALL)}
    assert [plan.group.name for plan in plans] == [parse]


def test_a_rewind_that_no_worker_could_follow_is_not_planned(cluster: Settings, tmp_path: Path) -> None:
    """The log lost its first records, and no snapshot lies before the place; where nothing is taken back, none must."""
    ensure_topics(cluster)
    topic, producer = Topics(cluster.kafka.prefix).urls, Producer(cluster, "test")
    settings = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": tmp_path})})
    for _ in range(3):
        producer.send(topic, b"", partition=1)
    assert producer.flush(30)
    admin = Admin(settings)
    for future in admin.client.delete_records([TopicPartition(topic, 1, 1)]).values():
        admin.result(future)
    with pytest.raises(Misconfigured, match=r"urls\[1\] begins at offset 1, and no snapshot lies between there and 2"):
        replay(settings, ReplayOptions("fetch", "to-offset", 2), print)
    assert replay(settings, ReplayOptions("fetch", "to-offset", 3), print).plans[0].again == 0


def parsed(cluster: Settings, tmp_path: Path) -> tuple[Settings, Topics, Producer, list[str]]:
    """A log of three pages that group parse is behind; the topic and the partition that they are in."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    settings = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": tmp_path})})
    for _ in range(3):
        producer.send(topics.pages, b"", partition=1)
    assert producer.flush(30)
    pages = [f"{topics.pages}:1"]
    replay(settings, ReplayOptions("parse", "to-latest", topics=pages, execute=True), print)
    return settings, topics, producer, pages


def test_outputs_wait_for_pages_that_are_parsed_again(cluster: Settings, tmp_path: Path) -> None:
    """The coordinator hears where parse is now. A job that had ended before the pages that are read stays as it is."""
    settings, topics, producer, pages = parsed(cluster, tmp_path)
    spec = JobSpec(1, outputs=(OutputSpec("rows.jsonl"),), state="finished")
    for job, passed in (("before", 2), ("among", 3)):
        write_job(settings, producer, topics, job, spec)
        write_control(producer, topics, [Finished(job, 1.0, pages=(0, passed), rev=1)])
    replay(settings, ReplayOptions("parse", "to-offset", 2, topics=pages, execute=True), print)
    found = {job: copy.spec.state for job in ("before", "among") if (copy := known_job(settings, topics, job))}
    assert found == {"before": "finished", "among": "running"}
    [told] = read_records(settings, topics.progress, 0, 0, log_bounds(settings, topics.progress, [0])[0][1])
    place = progress.decode(told.value())
    assert place is not None
    assert (place.stage, place.partition, place.offset) == ("parse", 1, 2)


def test_a_replay_that_dies_before_it_moves_parse_is_done_by_the_same_command(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs wait already. Were parse moved first, the command would find nothing to do, and FILE would lack rows."""
    settings, topics, producer, pages = parsed(cluster, tmp_path)
    write_job(settings, producer, topics, "j", JobSpec(1, outputs=(OutputSpec("rows.jsonl"),), state="finished"))
    again = ReplayOptions("parse", "to-offset", 2, topics=pages, execute=True)
    parse = stage_group(settings, "parse")
    with dying(monkeypatch, "replay.announced", 1):
        replay(settings, again, print)
    copy = known_job(settings, topics, "j")
    assert copy is not None
    assert copy.spec.state == "running"
    assert committed_offsets(settings, parse, topics.pages, [1]) == {1: (3, REPLAY_ALL)}
    replay(settings, again, print)
    assert committed_offsets(settings, parse, topics.pages, [1]) == {1: (2, REPLAY_ALL)}
