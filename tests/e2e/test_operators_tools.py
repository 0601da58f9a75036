"""Kafka's own tools beside a crawl: records deleted before a stage read them, groups moved. Nothing goes in silence."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from crawlog.streams.log.admin import Admin
from crawlog.streams.log.topics import Topics, stage_group
from crawlog.streams.settings.settings import Settings
from tests.support.crawls import PAGES, Numbered, data, there
from tests.support.processes import Process, crawlog, done, ended, until

__all__ = ["data", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def site() -> Iterator[Numbered]:
    """Pages without links."""
    made = Numbered(PAGES, lambda _: ())
    yield made
    made.close()


class Crawl:
    """A crawl of all pages of a site, by the session's broker, and what an operator does beside it."""

    def __init__(self, site: Numbered, data: Path, there: list[str], settings: Settings) -> None:
        self.site, self.data, self.settings = site, data, settings
        self.names = Topics(settings.kafka.prefix)
        self.urls = sorted(f"{site.origin}/{number}" for number in range(1, PAGES + 1))
        self._where = ["--data", data, *there]
        self.options = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.01"]
        self.admin = Admin(settings)
        done(crawlog("topics", "--create", *self._where))

    def command(self, *words: object) -> Process:
        """A command on the crawl's data folder and log."""
        return crawlog(*words, *self._where)

    def run(self, *more: object) -> Process:
        """`crawlog run`, the same each time."""
        where = ["-o", self.data.parent / "rows.jsonl", "--job", "j", "--json"]
        return self.command("run", *self.urls, *where, *self.options, *more)

    def told(self, action: str, stage: str) -> None:
        """`crawlog control` of a stage."""
        done(crawlog("control", action, "--stage", stage, *self._where))

    def until_held(self, stage: str) -> None:
        """Runs until all is done but a stage, and stops."""
        self.told("pause", stage)
        run = self.run()
        topic = self.names.pages if stage == "parse" else self.names.items
        until(lambda: sum(self.ends(topic)) >= PAGES, "pages", run)
        run.terminate()
        assert ended(run)[0] == 143
        self.told("resume", stage)

    def ends(self, topic: str) -> tuple[int, ...]:
        """The ends of a topic's partitions."""
        return self.admin.ends((topic,), self.settings.kafka.partitions)[topic]

    def delete(self, topic: str) -> None:
        """DeleteRecords: all of a topic."""
        places = [TopicPartition(topic, at, end) for at, end in enumerate(self.ends(topic))]
        for future in self.admin.client.delete_records(places).values():
            self.admin.result(future)

    def skip(self, stage: str, topic: str) -> None:
        """What `kafka-consumer-groups --to-latest` does with a group that has no members."""
        places = [TopicPartition(topic, at, end) for at, end in enumerate(self.ends(topic))]
        group = stage_group(self.settings, stage)
        for future in self.admin.client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)]
        ).values():
            future.result()

    def rows(self) -> list[str]:
        """URLs of the results."""
        lines = (self.data.parent / "rows.jsonl").read_text().splitlines()
        return sorted(json.loads(line)["url"] for line in lines)

    def verified(self) -> tuple[int, str]:
        """What `crawlog verify --log` says."""
        process = crawlog("verify", "--log", *self._where)
        out, err = process.communicate()
        return process.returncode, out + err


@pytest.fixture
def crawl(site: Numbered, data: Path, there: list[str], cluster: Settings) -> Crawl:
    """A crawl that has not begun."""
    return Crawl(site, data, there, cluster)


def test_pages_that_were_deleted_before_parse_read_them_are_fetched_again(crawl: Crawl) -> None:
    """`verify --log` names them; the command that it names ends complete, and asks once more for each."""
    crawl.until_held("parse")
    crawl.delete(crawl.names.pages)
    code, told = crawl.verified()
    assert code == 5
    assert f"missing: {PAGES}; `crawlog run` of the job, the same command again" in told
    code, _, err = ended(crawl.run())
    assert (code, crawl.rows()) == (0, crawl.urls), err
    assert set(crawl.site.pages().values()) == {2}
    assert "before they were parsed" in err or f"pages gone, fetched again: {PAGES}" in err
    assert crawl.verified()[0] == 0


@pytest.mark.parametrize("accepts", [False, True])
def test_a_group_that_another_program_moved_forward_goes_back(crawl: Crawl, accepts: bool) -> None:
    """What it passed over is counted and said, and no page is asked for again; or the user accepts it."""
    crawl.until_held("parse")
    crawl.skip("parse", crawl.names.pages)
    code, told = crawl.verified()
    assert (code, "moved the group" in told) == (5, True)
    code, _, err = ended(crawl.run(*["--accept-skipped"] * accepts))
    assert (code, crawl.rows()) == (0, [] if accepts else crawl.urls), err
    found = re.search(r"([0-9]+) pages of \S+ not parsed, offsets ([0-9]+) to ([0-9]+) of partition", err)
    assert found is not None, err
    assert int(found[1]) >= PAGES
    assert ("they are left out" in err) is accepts
    assert set(crawl.site.pages().values()) == {1}
    assert crawl.verified()[0] == 0


@pytest.mark.parametrize("with_pages", [False, True])
def test_items_that_were_deleted_before_the_sink_read_them_are_made_again(crawl: Crawl, with_pages: bool) -> None:
    """From their pages without a request, or by a request where these are gone, too."""
    crawl.until_held("sink")
    crawl.delete(crawl.names.items)
    if with_pages:
        crawl.delete(crawl.names.pages)
    code, _, err = ended(crawl.run())
    assert (code, crawl.rows()) == (0, crawl.urls), err
    assert f"{crawl.names.items} lost records before they were read" in err
    assert set(crawl.site.pages().values()) == {2 if with_pages else 1}


def test_a_fleet_makes_rows_again_whose_items_were_deleted(crawl: Crawl) -> None:
    """`up` moves parse back to their pages beside the other workers; FILE waits, and no page is asked for again."""
    crawl.told("pause", "sink")
    done(crawl.command("up", *crawl.options))
    done(crawl.command("submit", *crawl.urls, "-o", "rows.jsonl", "--job", "j", *crawl.options))
    until(lambda: sum(crawl.ends(crawl.names.items)) >= PAGES, "items")
    crawl.delete(crawl.names.items)
    crawl.told("resume", "sink")
    made = crawl.data / "outputs" / "j" / "rows.jsonl"
    until(made.exists, "FILE")
    assert sorted(json.loads(line)["url"] for line in made.read_text().splitlines()) == crawl.urls
    assert set(crawl.site.pages().values()) == {1}
