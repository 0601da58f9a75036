"""Asks the broker five times a second for the owner of each partition of crawl.urls, and writes it down.

    python -m bench.faults.owners BOOTSTRAP FILE      a password in the environment

A process of its own: librdkafka's admin client asserts when a broker dies under its question, and would take the
harness with it. The harness starts it again. Times are on the system's monotonic clock, as the site's.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from bench.faults.judge import Ownership
from crawlog.streams.cluster.client import kafka_config
from crawlog.streams.settings.sources import load

GROUP, TOPIC = "crawlog-fetch", "crawl.urls"
EVERY_S = 0.2
ANSWER_S = 5.0


def read(file: Path) -> list[Ownership]:
    """All samples; a torn last line is left out."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    samples = (json.loads(line) for line in lines if line.endswith("\n"))
    return [
        Ownership(asked, answered, {int(n): name for n, name in owners.items()}) for asked, answered, owners in samples
    ]


def main() -> None:
    """Until it is killed."""
    admin = AdminClient(kafka_config(load({"kafka.bootstrap": sys.argv[1]})))
    with Path(sys.argv[2]).open("a", buffering=1) as out:
        while True:
            time.sleep(EVERY_S)
            asked = time.monotonic()
            with contextlib.suppress(KafkaException):
                owners = ask(admin)
                out.write(json.dumps([asked, time.monotonic(), owners]) + "\n")


def ask(admin: AdminClient) -> dict[int, str]:
    """Owner by partition; empty while the group is between two assignments."""
    group = admin.describe_consumer_groups([GROUP], request_timeout=ANSWER_S)[GROUP].result()
    if group.state != ConsumerGroupState.STABLE:
        return {}
    return {
        place.partition: member.group_instance_id or member.client_id
        for member in group.members
        for place in member.assignment.topic_partitions
        if place.topic == TOPIC
    }


if __name__ == "__main__":
    main()
