"""The services of docker/compose.yaml on three machines: a broker dies, a machine is cut off and dies, one joins.

The machines are namespaces (`tests/support/machines.py`). The site runs on each of them, so that a machine whose link
is cut could still ask it: its worker must not, once another one has its partitions.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.cluster import needs_site
from tests.support.machines import ImageBroker, Machine, Machines, compose
from tests.support.processes import until
from tests.support.synthetic_site import Site, build

pytestmark = [pytest.mark.broker, pytest.mark.long, needs_site]

SECRETS = {"KAFKA_PASSWORD": "one password", "CRAWLOG_PASSWORD": "another", "METRICS_TOKEN": "a third"}
HOSTS, PAGES, DELAY_S = 16, 200, 0.5
FLAGS = {"bytes": 3000, "links": 20}
STAGES = {"a": ("fetch", "parse", "start", "service"), "b": ("fetch", "parse", "sink"), "c": ("fetch", "parse", "sink")}
AGENT = "crawlog-test"

UNTIL_DONE = ["sh", "-c", 'until "$@"; do sleep 1; done', "sh"]
"""What starts a command again until it ends well, as `restart: on-failure` does."""

AGAIN = ["sh", "-c", 'while :; do "$@"; sleep 1; done', "sh"]
"""What starts a worker again, as `restart: unless-stopped` does."""

Row = tuple[int, str, int]


class Fleet:
    """Brokers and workers of the file's own commands and environment, and the site."""

    def __init__(self, machines: Machines, results: Path, site: Site) -> None:
        self.machines = machines
        self.results = results
        self.site = site
        self.sites: dict[str, psutil.Popen] = {}
        self.services = compose(SECRETS)
        self.brokers = {
            name: ImageBroker(machines[name], self.services[f"kafka-{number}"]["environment"])
            for number, name in enumerate("abc", 1)
        }

    def environment(self, machine: Machine, service: str) -> Mapping[str, str]:
        """The file's, with this machine's folders, and what the site of this test needs."""
        given: dict[str, str] = self.services[service]["environment"]
        return given | {
            "CRAWLOG_RUN__DATA": str(machine.folder / "data"),
            "CRAWLOG_RUN__READY_FILE": str(machine.folder / f"ready-{service}"),
            "CRAWLOG_SINK__FOLDER": str(self.results),
            "CRAWLOG_NETWORK__ALLOW_PRIVATE": "true",
            "CRAWLOG_POLITENESS__DELAY_S": str(DELAY_S),
            "CRAWLOG_FETCH__USER_AGENT": AGENT,
        }

    def start(self, name: str, *stages: str) -> None:
        """A machine's site and workers."""
        machine = self.machines[name]
        flags = {"hosts": HOSTS, "pages": PAGES, "port": self.site.port, "log": machine.folder / "access.log"} | FLAGS
        words = [str(build()), *(f"-{flag}={value}" for flag, value in flags.items())]
        self.sites[name] = machine.start(*words, env={}, log="site")
        for stage in stages:
            command = [sys.executable, "-m", "crawlog", *self.services[stage]["command"]]
            machine.start(*AGAIN, *command, env=os.environ | self.environment(machine, stage), log=stage)

    def ready(self, name: str, *stages: str) -> None:
        """Waits for the ready files of workers; of the service for its own health check."""
        files = [self.machines[name].folder / f"ready-{stage}" for stage in stages if stage != "service"]
        until(lambda: all(file.exists() for file in files), f"workers of {name} that are ready")
        if "service" in stages:
            check = [sys.executable, *self.services["service"]["healthcheck"]["test"][2:]]
            until(lambda: self.machines[name].start(*check, env=os.environ, log="check").wait(30) == 0, "the service")

    def ask(self, *words: str) -> str:
        """A command of the service `client`, on the first machine."""
        return self.machines["a"].ask(*words, env=self.environment(self.machines["a"], "client"))

    def submit(self, job: str) -> psutil.Popen:
        """The site's job; the command follows it to its end."""
        words = ("submit", *self.site.seeds, "--job", job, "-o", "rows.jsonl", "--wait")
        return self.machines["a"].crawlog(*words, env=self.environment(self.machines["a"], "client"))

    def written(self, job: str) -> int:
        """Rows so far."""
        files = [self.results / job / name for name in ("rows.jsonl.partial", "rows.jsonl")]
        return max((file.read_bytes().count(b"\n") for file in files if file.exists()), default=0)

    def rows(self, job: str) -> dict[str, Row]:
        """The output by URL, each of which must have one row."""
        rows = [json.loads(line) for line in (self.results / job / "rows.jsonl").read_text().splitlines()]
        found = {row["url"]: (row["status"], row["title"], row["links"]) for row in rows}
        assert len(found) == len(rows)
        return found

    def asked(self, name: str) -> list[tuple[float, str]]:
        """Time and host of each request at a machine's site, which has ended."""
        lines = (self.machines[name].folder / "access.log").read_text().splitlines()
        fields = [line.split("\t") for line in lines]
        return [(int(at) / 1e9, host) for at, host, *_, agent in fields if agent == AGENT]

    def requests(self) -> list[tuple[float, str]]:
        """Those of all machines in their order. Ends the sites."""
        for site in self.sites.values():
            if site.is_running():
                site.terminate()
                site.wait(30)
        return sorted(request for name in self.sites for request in self.asked(name))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Three machines that work, and a fourth one without anything."""
    aliases = {"kafka-1": "a", "kafka-2": "b", "kafka-3": "c"}
    results = tmp_path / "results"
    with Site(HOSTS, PAGES, flags=FLAGS) as site, Machines(tmp_path, *"abcd", aliases=aliases) as machines:
        made = Fleet(machines, results, site)
        for broker in made.brokers.values():
            broker.start()
        topics = [sys.executable, "-m", "crawlog", *made.services["topics"]["command"]]
        environ = os.environ | made.environment(machines["a"], "topics")
        assert machines["a"].start(*UNTIL_DONE, *topics, env=environ, log="topics").wait(300) == 0
        for name, stages in STAGES.items():
            made.start(name, *stages)
        for name, stages in STAGES.items():
            made.ready(name, *stages)
        yield made


def test_a_broker_dies_a_machine_is_cut_off_and_dies_one_joins_and_the_rows_are_the_same(fleet: Fleet) -> None:
    """Each page is one row, as of the run before that nothing disturbed; no host is asked by two machines at once."""
    urls = fleet.site.urls()
    assert fleet.submit("calm").wait(300) == 0
    calm = fleet.rows("calm")
    assert set(calm) == urls

    followed = fleet.submit("stormy")
    until(lambda: fleet.written("stormy") > len(urls) // 5, "a fifth of the rows")
    measured = {"broker": stall(fleet, fleet.brokers["b"].kill)}
    fleet.ask("jobs", "pause", "stormy")
    fleet.brokers["b"].start()
    until(lambda: in_sync(fleet), "the broker to have what it missed")
    fleet.ask("jobs", "resume", "stormy")

    measured["machine"] = stall(fleet, fleet.machines["c"].cut)
    fleet.sites["c"].terminate()
    fleet.sites["c"].wait(30)
    fleet.machines["c"].kill()
    fleet.ask("jobs", "pause", "stormy")
    began = time.monotonic()
    fleet.start("d", "fetch", "parse", "sink")
    fleet.ready("d", "fetch", "parse", "sink")
    measured["joined"] = round(time.monotonic() - began, 1)
    fleet.ask("jobs", "resume", "stormy")

    assert followed.wait(400) == 0
    sys.stdout.write(f"{measured}\n")
    assert fleet.rows("stormy") == calm
    by_host: dict[str, list[float]] = {}
    for at, host in fleet.requests():
        by_host.setdefault(host, []).append(at)
    assert min(later - earlier for times in by_host.values() for earlier, later in pairwise(times)) >= DELAY_S * 0.9
    assert fleet.asked("d")


def in_sync(fleet: Fleet) -> bool:
    """Whether all replicas have what their leaders have."""
    rows = [json.loads(line) for line in fleet.ask("topics", "--json").splitlines()]
    return all(row["in_sync"] == row["replicas"] == 3 for row in rows if "replicas" in row)


def stall(fleet: Fleet, death: Any) -> float:
    """The longest time without a new row until a hundred more came after a death, seconds."""
    at, most = time.monotonic(), 0.0
    before = last = fleet.written("stormy")
    death()

    def goes_on() -> bool:
        nonlocal at, most, last
        now, rows = time.monotonic(), fleet.written("stormy")
        most = max(most, now - at)
        if rows != last:
            at, last = now, rows
        return rows > before + 100

    until(goes_on, "a hundred rows after a death")
    return round(most, 1)
