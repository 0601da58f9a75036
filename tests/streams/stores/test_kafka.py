"""Rows in an output topic: a real broker."""

import json
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, TopicPartition

from crawlog.streams.cluster import foreign_config
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings import Settings
from crawlog.streams.sink import sink_of
from crawlog.streams.stores import KafkaTopic, fill
from crawlog.streams.stores.columns import OWN
from tests.support.storing import Feeding, Kept, Row, StoreContract

pytestmark = pytest.mark.broker


@pytest.fixture
def address(cluster: Settings) -> str:
    """A topic that is not there."""
    config = foreign_config(cluster)
    user, password = config.get("sasl.username", ""), config.get("sasl.password", "")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
    return f"kafka://{login}{cluster.kafka.bootstrap}/{cluster.kafka.prefix}rows"


@pytest.fixture
def kept(cluster: Settings) -> Kept:
    """Reads the topic as Connect does: what is committed, the newest value of each key."""

    def read() -> dict[tuple[str, int], Row]:
        config = {"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
        reader = Consumer(foreign_config(cluster) | config)
        topic = f"{cluster.kafka.prefix}rows"
        partitions = reader.list_topics(topic, timeout=30).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, 0) for number in partitions])
        newest: dict[bytes, bytes | None] = {}
        ends = 0
        while ends < len(partitions):
            record = reader.poll(30)
            assert record is not None
            if record.error() is not None:
                ends += 1
                continue
            key = record.key()
            assert key is not None
            newest[key] = record.value()
        reader.close()
        found = {}
        for key, value in newest.items():
            if value is not None:
                row = json.loads(value)["payload"]
                found[row["_url"], json.loads(key)["payload"]["_n"]] = _row(row)
        return found

    return read


def _row(stored: Row) -> Row:
    """A row as it was given: JSON in texts, and the rest, as they were."""
    row = {name: value for name, value in stored.items() if name not in OWN and value is not None}
    if row.get("name") == "7":
        row["name"] = 7
    if isinstance(row.get("tags"), str):
        row["tags"] = json.loads(str(row["tags"]))
    rest: Row = json.loads(str(stored["_rest"] or "{}"))
    return row | rest


class TestKafkaTopic(StoreContract):
    """An output topic."""

    finds_gone = marks = False

    def test_records_have_the_schema_of_connect(self, feeding: Feeding, store: KafkaTopic, cluster: Settings) -> None:
        """A struct with a type for each field; the schema goes on with a store that was opened again."""
        feeding.page(1, "http://a/", {"n": 1, "price": 2.5, "ok": True})
        fill(store, feeding.state)
        feeding.page(2, "http://b/", {"name": "b"})
        fill(store, feeding.state)
        topic = f"{cluster.kafka.prefix}rows"
        reader = Consumer(foreign_config(cluster) | {"group.id": "reader", "isolation.level": "read_committed"})
        numbers = reader.list_topics(topic, timeout=30).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, 0) for number in numbers])
        found: list[dict[str, str]] = []
        while len(found) < 2:
            record = reader.poll(30)
            assert record is not None
            if record.error() is None and (value := record.value()) is not None:
                fields = json.loads(value)["schema"]["fields"]
                found.append({one["field"]: one["type"] for one in fields if not one["field"].startswith("_")})
        reader.close()
        first = {"n": "int64", "price": "double", "ok": "boolean"}
        assert sorted(found, key=len) == [first, first | {"name": "string"}]

    def test_an_address_without_a_topic_is_refused(self) -> None:
        """The message shows the form."""
        with pytest.raises(Misconfigured, match="HOST:PORT/TOPIC"):
            sink_of("j", "kafka://127.0.0.1:9092")
