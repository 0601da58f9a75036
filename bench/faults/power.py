"""A power cut: everything is killed, the ends of crawl.pages and crawl.items are lost, the machine has booted anew."""

import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench.faults.crawl import Crawl
from bench.faults.schedule import Fault

LOST = 0.15
"""Part of each partition's last segment that the disk did not get; more than any disk loses in a crawl of hours."""


class PowerCut(Fault):
    """Acknowledged records are gone, more of one topic than of another."""

    name = "power"
    says = "the machine dies: ends of crawl.pages and crawl.items are lost, the boot id is another"
    again_percent = 20.0
    limits: ClassVar[Mapping[str, float]] = {"silent": 0.0}

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Once: what a second one loses is no different."""
        if not crawl.until(dice.uniform(0.3, 0.6), 600) or not crawl.note("power cut"):
            return {}
        crawl.kill_all()
        kafka = crawl.data / "kafka"
        note = json.loads((kafka / "broker.json").read_text())
        (kafka / "broker.json").write_text(json.dumps(note | {"boot": "before"}))
        for topic in ("pages", "items"):
            for folder in sorted((kafka / "log").glob(f"crawl.{topic}-*")):
                _cut(max(folder.glob("*.log")))
        again = time.monotonic()
        crawl.start()
        return {"first fetch s": crawl.until_asked(again), "silent": float(not _said(crawl))}


def _cut(segment: Path) -> None:
    with segment.open("rb+") as opened:
        opened.truncate(int(segment.stat().st_size * (1 - LOST)))


def _said(crawl: Crawl) -> bool:
    return "the machine went down" in crawl.said.read_text(errors="replace")
