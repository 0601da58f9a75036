"""Kafka's own tools beside a crawl: records deleted before a stage read them, groups moved. Nothing goes in silence."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]  # it does not re-export them

from crawlog.streams import engine
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.log.topics import Topics, stage_group
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from tests.support.crawls import PAGES, Numbered, data, there, workers
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

    def delete(self, topic: str, share: float = 1.0) -> None:
        """DeleteRecords: a topic's records, or the first ones of each partition."""
        places = [TopicPartition(topic, at, int(end * share)) for at, end in enumerate(self.ends(topic))]
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


def test_pages_that_operators_tools_took_from_parse_are_fetched_or_parsed(crawl: Crawl) -> None:
    """Half of them deleted, the group moved past the others: `verify --log` tells, and the command that it names mends.

    Only what was deleted is asked for again.
    """
    crawl.until_held("parse")
    crawl.delete(crawl.names.pages, 0.5)
    crawl.skip("parse", crawl.names.pages)
    code, told = crawl.verified()
    assert (code, "moved the group" in told) == (5, True)
    assert "; `crawlog run` of the job, the same command again, or `crawlog up` mends it" in told
    code, _, err = ended(crawl.run())
    assert (code, crawl.rows()) == (0, crawl.urls), err
    asked = crawl.site.pages()
    assert set(asked.values()) == {1, 2}
    again = sum(asked.values()) - PAGES
    assert f"pages fetched again: {again}" in err or f"pages gone, fetched again: {again}" in err
    found = re.search(r"([0-9]+) pages of \S+ not parsed, offsets ([0-9]+) to ([0-9]+) of partition", err)
    assert found is not None, err
    assert PAGES - again <= int(found[1]) == int(found[3]) - int(found[2]) + 1
    assert "they are parsed now" in err
    assert crawl.verified()[0] == 0


@pytest.mark.long
@pytest.mark.parametrize("command", ["run", "up"])
def test_pages_that_a_moved_group_passed_over_stay_out_if_the_user_accepts_it(crawl: Crawl, command: str) -> None:
    """By `run --accept-skipped`; a fleet takes it at its start alone, by the command that the refusal names."""
    crawl.until_held("parse")
    crawl.skip("parse", crawl.names.pages)
    if command == "up":
        done(crawl.command("up", "--accept-skipped", *crawl.options))
        code, told, err = ended(crawl.run("--accept-skipped"))
        named = re.search(r"Stop them, then `crawlog ([^`]+)`", err)
        assert named is not None, err
        assert code == 2, told
        done(crawl.command("down"))
        done(crawlog(*shlex.split(named[1])))
        assert "they are left out" in (crawl.data / "logs" / "up.log").read_text()
        code, _, err = ended(crawl.run())
        done(crawl.command("down"))
    else:
        code, _, err = ended(crawl.run("--accept-skipped"))
        assert "they are left out" in err
    assert (code, crawl.rows()) == (0, []), err
    assert set(crawl.site.pages().values()) == {1}
    assert crawl.verified()[0] == 0


@pytest.mark.long
def test_items_that_were_deleted_before_the_sink_read_them_are_made_again(crawl: Crawl) -> None:
    """From their pages without a request; by a request for each page that is gone, too."""
    crawl.until_held("sink")
    crawl.delete(crawl.names.items)
    crawl.delete(crawl.names.pages, 0.5)
    code, _, err = ended(crawl.run())
    assert (code, crawl.rows()) == (0, crawl.urls), err
    assert f"{crawl.names.items} lost records before they were read" in err
    assert set(crawl.site.pages().values()) == {1, 2}


@pytest.mark.long
@pytest.mark.parametrize("is_verified", [False, True])
def test_a_fleet_makes_rows_again_whose_items_were_deleted(crawl: Crawl, is_verified: bool) -> None:
    """`up` moves parse back to their pages beside the other workers, or the `up` that `verify --log` names does.

    FILE waits, and no page is asked for again.
    """
    crawl.told("pause", "sink")
    done(crawl.command("up", *crawl.options))
    done(crawl.command("submit", *crawl.urls, "-o", "rows.jsonl", "--job", "j", *crawl.options))
    until(lambda: sum(crawl.ends(crawl.names.items)) >= PAGES, "items")
    if is_verified:
        done(crawl.command("down"))
    crawl.delete(crawl.names.items)
    if is_verified:
        code, told = crawl.verified()
        assert (code, "or `crawlog up` mends it" in told) == (5, True), told
        done(crawl.command("up", *crawl.options))
    crawl.told("resume", "sink")
    made = crawl.data / "outputs" / "j" / "rows.jsonl"
    until(made.exists, "FILE")
    assert sorted(json.loads(line)["url"] for line in made.read_text().splitlines()) == crawl.urls
    assert set(crawl.site.pages().values()) == {1}


@pytest.mark.long
def test_pages_that_go_under_a_living_parse_worker_are_fetched_again(crawl: Crawl) -> None:
    """It meets the gap at its next read and ends; the next one asks for them, in the same run."""
    crawl.told("pause", "parse")
    run = crawl.run()
    until(lambda: sum(crawl.ends(crawl.names.pages)) >= PAGES, "pages", run)
    crawl.delete(crawl.names.pages)
    crawl.told("resume", "parse")
    code, _, err = ended(run)
    assert (code, crawl.rows()) == (0, crawl.urls), err
    assert "before they were parsed" in err, err


@pytest.mark.long
def test_pages_that_retention_deletes_while_parse_is_paused_are_fetched_again(site: Numbered, data: Path) -> None:
    """The worker that had some of them in memory is killed; the next one asks for them.

    A broker looks for old records half a minute after its start, then each five minutes: so the fleet starts twice.
    """
    options = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.01"]
    urls = sorted(f"{site.origin}/{number}" for number in range(1, PAGES + 1))
    done(crawlog("up", "--data", data, "--workers", "fetch=1,parse=1", *options))
    done(crawlog("control", "pause", "--stage", "parse", "--data", data))
    done(crawlog("submit", *urls, "-o", "rows.jsonl", "--job", "j", "--data", data, *options))
    until(lambda: sum(end for _, end in held_pages(data)) >= PAGES, "pages")
    done(crawlog("down", "--data", data))
    done(crawlog("up", "--data", data, "--workers", "fetch=1,parse=1", *options))
    keep(data, "1")
    until(lambda: all(first == end for first, end in held_pages(data)), "the broker's look for old records")
    keep(data, "-1")
    (parse,) = (pid for name, pid in workers(data).items() if name.startswith("parse"))
    os.kill(parse, signal.SIGKILL)
    done(crawlog("control", "resume", "--stage", "parse", "--data", data))
    made = data / "outputs" / "j" / "rows.jsonl"
    until(made.exists, "FILE")
    assert sorted(json.loads(line)["url"] for line in made.read_text().splitlines()) == urls
    assert set(site.pages().values()) == {2}


def local_log(data: Path) -> Settings:
    """Settings that reach the log of a fleet on its own broker."""
    running = engine.running(data)
    assert running is not None
    return running.point(load({}))


def held_pages(data: Path) -> list[tuple[int, int]]:
    """The bounds of crawl.pages."""
    log = local_log(data)
    return list(log_bounds(log, "crawl.pages", list(range(log.kafka.partitions))).values())


def keep(data: Path, retention_ms: str) -> None:
    """What `kafka-configs --alter` does with a topic."""
    admin = Admin(local_log(data))
    entry = ConfigEntry("retention.ms", retention_ms, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "crawl.pages", incremental_configs=[entry])
    for future in admin.client.incremental_alter_configs([resource]).values():
        admin.result(future)
