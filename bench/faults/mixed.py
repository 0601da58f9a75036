"""One of each in one run, in an order of the dice: as much as the test suite has time for."""

import random
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from bench.faults import crawl as harness
from bench.faults.crawl import Crawl
from bench.faults.poison import pour
from bench.faults.processes import SESSION_S
from bench.faults.schedule import Fault

BAD_RECORDS = 60


class Mixed(Fault):
    """A kill of each kind of process, poison, and a zombie."""

    name = "mixed"
    says = "once each: kill -9 of a fetch and a parse worker, the conductor with its sink, the broker; poison; a zombie"
    apart = True
    machines = True
    again_percent = 10.0
    sizes: ClassVar[Mapping[str, Any]] = {"fetch": 2}

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """The poison first, while all workers that find it are alive."""
        crawl.recounts = False  # it takes as long as the faults
        first, *others = DEEDS
        dice.shuffle(others)
        silences = [0.0]
        for number, deed in enumerate((first, *others)):
            if not crawl.until(0.03 + 0.12 * number, 120) or not crawl.note(deed.__name__.removeprefix("_")):
                break
            deed(crawl, dice)
            silences.append(crawl.until_asked(time.monotonic()))
        return {"longest silence s": max(silences)}


def _poison(crawl: Crawl, dice: random.Random) -> None:
    pour(crawl, dice, BAD_RECORDS)


def _fetch(crawl: Crawl, dice: random.Random) -> None:
    harness.kill(dice.choice(crawl.pids("fetch")))


def _parse(crawl: Crawl, dice: random.Random) -> None:
    harness.kill(dice.choice(crawl.pids("parse")))


def _conductor(crawl: Crawl, dice: random.Random) -> None:  # noqa: ARG001  # one signature for all
    crawl.kill_conductor()
    crawl.conduct()


def _broker(crawl: Crawl, dice: random.Random) -> None:  # noqa: ARG001  # so too
    pid = crawl.broker_pid()
    assert pid is not None
    harness.kill(pid)
    crawl.start_broker()


def _zombie(crawl: Crawl, dice: random.Random) -> None:
    pid = dice.choice(crawl.pids("fetch"))
    harness.stop(pid)
    crawl.sleep(SESSION_S + 3.0)
    harness.go_on(pid)


DEEDS = (_poison, _fetch, _parse, _conductor, _broker, _zombie)
