"""`crawlog changes`: what changed on pages, by field."""

from typing import Any

import msgspec
import pytest

from crawlog.cli.changing import change_lines
from crawlog.commands.page_changes import PageChanges, changes_of
from crawlog.schemas import items
from crawlog.schemas import urls as u
from crawlog.streams.control import write_job
from crawlog.streams.errors import UnknownName
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings

URL = "http://a.example/1"


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 1


@pytest.mark.broker
def test_changes_are_read_with_the_record_before_the_newest_last(cluster: Settings) -> None:
    """A page that was parsed twice is one change; a record that is gone is said to be; other jobs are left out."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    spec = u.JobSpec(spider="s.py:S", scope=u.ScopeSpec(kind="any"), recrawl=u.RecrawlRules(60.0, ignore=("at",)))
    write_job(cluster, producer, topics, "j", spec, 0)

    def write(page: int, change: items.Change, was: int | None, *rows: dict[str, Any], job: str = "j") -> None:
        raw = [msgspec.Raw(msgspec.json.encode(row)) for row in rows]
        place = (0, was) if was is not None else None
        value = items.encode(items.ItemsRecord(job, URL, (0, page), raw, change=change, was=place))
        for topic in (topics.items, topics.changes):
            producer.send(topic, value, key=items.key(job, URL), partition=0)

    write(0, "new", None, {"price": 1, "at": 1}, {"price": 5})
    write(1, "changed", 0, {"price": 5}, {"price": 2, "new": True, "at": 2})
    write(1, "changed", 0, {"price": 5}, {"price": 2, "new": True, "at": 3})
    write(0, "new", None, {"price": 9}, job="k")
    write(2, "gone", 2)
    write(3, "changed", 99, {"price": 5})
    assert producer.flush(30)
    found = changes_of(cluster, "j")
    assert [(one.change, one.items, one.is_lost) for one in found] == [
        ("new", [{"price": (None, 1)}, {"price": (None, 5)}], False),
        ("changed", [{"price": (1, 2), "new": (None, True)}], False),
        ("gone", [{"price": (5, None)}, {"price": (2, None), "new": (True, None)}], False),
        ("changed", [{"price": (None, 5)}], True),
    ]
    assert changes_of(cluster, "j", limit=2) == found[-2:]
    assert changes_of(cluster, "j", since=found[-1].at + 60) == []
    with pytest.raises(UnknownName, match="no job 'x'"):
        changes_of(cluster, "x")


def test_a_change_is_shown_by_field_with_its_old_and_its_new_value() -> None:
    """Long values are cut, texts are as they are, other values JSON."""
    change = PageChanges(
        0.0, "changed", URL, (0, 1), [{"price": ("1", 2), "tags": (None, ["a"]), "old": ("x" * 200, None)}]
    )
    assert list(change_lines(change)) == [
        f"1970-01-01 00:00:00  changed  {URL}",
        "    price: 1 → 2",
        '  + tags: ["a"]',
        f"  - old: {'x' * 119}…",
    ]
