"""The broker: killed, standing still, away; or one of three."""

import random
import time
from collections.abc import Mapping
from typing import ClassVar

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


class OneOfThree(Fault):
    """Each broker in turn, the one that coordinates the fetch workers hung, and a majority away."""

    name = "cluster"
    says = (
        "three brokers, three replicas: each broker killed -9 for 15 s, the coordinator of the fetch workers stopped "
        "(SIGSTOP) for 40 s, two of three brokers killed for 60 s"
    )
    apart = True
    brokers = 3
    again_percent = 0.5
    limits: ClassVar[Mapping[str, float]] = {"longest silence, hang, s": 10.0, "workers ended": 0.0}

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """The next one once the last has caught up."""
        cluster = crawl.cluster
        assert cluster is not None, "asked for by `brokers`"
        deeds = ["kill"] * len(cluster.nodes) + ["hang", "majority"]
        dice.shuffle(deeds)
        victims = dice.sample(cluster.nodes, len(cluster.nodes))
        silences = {"kill": [0.0], "hang": [0.0], "majority": [0.0]}
        for number, deed in enumerate(deeds):
            if not crawl.until((number + 0.5) / (len(deeds) + 1), 600) or not crawl.note(deed):
                break
            if deed == "hang":
                node = cluster.coordinator("crawlog-fetch")
                harness.stop(node.process.pid)
                silences[deed].append(self._quiet(crawl, 40.0))
                harness.go_on(node.process.pid)
            else:
                away = [victims.pop()] if deed == "kill" else dice.sample(cluster.nodes, 2)
                for node in away:
                    node.kill()
                quiet_s = self._quiet(crawl, 15.0 if deed == "kill" else 60.0)
                for node in away:
                    node.start()
                silences[deed].append(quiet_s if deed == "kill" else crawl.until_asked(time.monotonic()))
            cluster.until_in_sync()
        titles = {"kill": "longest silence, kill, s", "hang": "longest silence, hang, s",
                  "majority": "fetching again after the majority is back, s"}  # fmt: skip
        ended = sum(len(worker.codes) for worker in crawl.workers.values())
        return {titles[deed]: max(found) for deed, found in silences.items()} | {"workers ended": float(ended)}

    def _quiet(self, crawl: Crawl, seconds: float) -> float:
        """The longest time without any request while so long a time goes by."""
        longest, since, end = 0.0, time.monotonic(), time.monotonic() + seconds
        while (now := time.monotonic()) < end and crawl.sleep(0.2):
            since = max(since, crawl.site.stats()["last"])
            longest = max(longest, now - since)
        return longest
