"""Processes that end or stand still: a worker, all of them, the supervisor, a worker that comes back from the dead."""

import random
import shutil
import time
from typing import ClassVar

from bench.faults import crawl as harness
from bench.faults.crawl import Crawl
from bench.faults.schedule import Fault

EVERY_S = 5.0
KILLS_OF_ALL = 20
SESSION_S = 6.0
"""`kafka.session_timeout_s`: a worker that is silent for longer has lost its partitions."""


class Kill(Fault):
    """A random worker, again and again."""

    name = "kill"
    says = "kill -9 of a random fetch, parse or sink worker every 5 s"
    again_percent = 2.0

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Until the crawl ends."""
        crawl.until(0.02, 120)
        while crawl.sleep(EVERY_S):
            pids = sorted(crawl.pids("fetch", "parse", "sink"))
            if pids and crawl.note("kill"):
                harness.kill(dice.choice(pids))
        return {}


class KillAll(Fault):
    """Supervisor, workers and broker at once; every second time the states are deleted too."""

    name = "all"
    says = "kill -9 of everything at once, 20 times; every second time the state folder is deleted"
    again_percent = 20.0

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """At random instants of the crawl, then the same command again."""
        silences: dict[bool, list[float]] = {False: [0.0], True: [0.0]}
        for number, share in enumerate(sorted(dice.uniform(0.01, 0.93) for _ in range(self.times(crawl)))):
            if not crawl.until(share, 600) or not crawl.note("kill all"):
                break
            is_wiped = number % 2 == 1
            crawl.kill_all()
            if is_wiped:
                for folder in crawl.states():
                    shutil.rmtree(folder)
            again = time.monotonic()
            crawl.start()
            silences[is_wiped].append(crawl.until_asked(again))
        return {"first fetch after s": max(silences[False]), "… state deleted s": max(silences[True])}

    def times(self, crawl: Crawl) -> int:
        """Fewer in a small crawl, which would otherwise be all restart."""
        return min(KILLS_OF_ALL, max(2, crawl.size.hosts * crawl.size.pages // 500))


class Zombie(Fault):
    """A fetch worker is stopped for longer than its session, and goes on when others have its partitions."""

    name = "zombie"
    says = "SIGSTOP of a fetch worker past its session, then SIGCONT"
    apart = True
    machines = True
    again_percent = 2.0

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Each time another worker."""
        crawl.until(0.05, 120)
        silences = [0.0]
        while crawl.sleep(2.0):
            names = sorted(name for name, worker in crawl.workers.items() if worker.stage == "fetch")
            victim = crawl.workers[dice.choice(names)].process
            if victim is None or victim.poll() is not None or not crawl.note("stop"):
                continue
            harness.stop(victim.pid)
            crawl.sleep(SESSION_S + dice.uniform(2.0, 8.0))
            harness.go_on(victim.pid)
            silences.append(crawl.until_asked(time.monotonic()))
            crawl.sleep(dice.uniform(1.0, 6.0))
        return {"longest silence s": max(silences)}


class LockedZombie(Zombie):
    """The same, where the others must take over the very folder that the stopped process holds locked."""

    name = "zombie-lock"
    says = "the same on one machine: the stopped worker holds the lock of its states"
    machines: ClassVar[bool] = False
