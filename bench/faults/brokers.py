"""The broker: killed, standing still, away."""

import random
import time

from bench.faults import crawl as harness
from bench.faults.crawl import Crawl
from bench.faults.schedule import Fault

KILLS = 5


class Bounce(Fault):
    """Killed, and standing still for half a minute, under `crawlog run`, which has to mend it."""

    name = "broker"
    says = "kill -9 of the broker 5 times, and SIGSTOP for 30 s"
    again_percent = 0.5

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """The stop comes somewhere between the kills."""
        deeds = ["kill"] * KILLS
        deeds.insert(dice.randrange(1, KILLS), "stop")
        silences = {"kill": [0.0], "stop": [0.0]}
        for number, deed in enumerate(deeds):
            if not crawl.until((number + 0.5) / (len(deeds) + 1), 600):
                break
            pid = crawl.broker_pid()
            if pid is None or not crawl.note(deed):
                continue
            if deed == "kill":
                harness.kill(pid)
            else:
                harness.stop(pid)
                crawl.sleep(self.stop_s(crawl))
                harness.go_on(pid)
            silences[deed].append(crawl.until_asked(time.monotonic()))
        return {"fetching again after a kill s": max(silences["kill"]), "… after the stop s": max(silences["stop"])}

    def stop_s(self, crawl: Crawl) -> float:
        """Less in a crawl that would be over by then."""
        return min(30.0, crawl.size.calm_s / 2)


class Gone(Fault):
    """Away for a minute, as when its machine is started anew."""

    name = "gone"
    says = "the broker is gone for 60 s"
    apart = True
    again_percent = 0.5

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Once, in the middle."""
        silence_s = float("inf")
        pid = crawl.broker_pid()
        if crawl.until(dice.uniform(0.2, 0.7), 600) and pid is not None and crawl.note("gone"):
            harness.kill(pid)
            crawl.sleep(min(60.0, crawl.size.calm_s))
            crawl.start_broker()
            silence_s = crawl.until_asked(time.monotonic())
        ended = sum(len(worker.codes) for worker in crawl.workers.values())
        return {"fetching again after s": silence_s, "workers ended": float(ended)}
