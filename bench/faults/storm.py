"""Workers that come and go: each time the group's partitions move."""

import itertools
import random
from collections.abc import Mapping
from typing import Any, ClassVar

from bench.faults.crawl import Crawl
from bench.faults.schedule import Fault

COUNTS = (4, 2, 3, 1)
EVERY_S = 10.0


class Storm(Fault):
    """1 → 4 → 2 → 3 workers, and again."""

    name = "storm"
    says = "1 → 4 → 2 → 3 fetch workers, a change every 10 s, by planned stops and starts"
    apart = True
    sizes: ClassVar[Mapping[str, Any]] = {"fetch": 1}
    again_percent = 0.5

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:  # noqa: ARG002  # the order is the fault
        """Until the crawl ends."""
        crawl.until(0.02, 120)
        for count in itertools.cycle(COUNTS):
            names = sorted(name for name, worker in crawl.workers.items() if worker.stage == "fetch")
            if not crawl.note(f"{count} workers"):
                break
            for name in names[count:]:
                crawl.remove(name)
            for number in range(count):
                crawl.add("fetch", f"fetch-{number}")
            if not crawl.sleep(EVERY_S):
                break
        return {}
