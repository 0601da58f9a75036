"""A worker with small agents, run as a process: `python tests/support/probe.py`, or `faust -A probe:app worker`.

Environment: `PROBE_STAGE`; `PROBE_FILE`, which gets a line for all that happens; `PROBE_HOLD` seconds that an event
takes; `PROBE_SKIP` an offset whose event is never said to be done; `PROBE_FAIL` one at which the agent fails;
`PROBE_REVOKE` seconds that the hook of a revocation takes; `PROBE_BLOCK` seconds that an event holds the event loop;
`PROBE_STUCK` the watchdog's patience, seconds; `PROBE_UNKNOWN` for how many seconds from its start on its client is
answered as by a broker that does not know the topic yet.
"""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from aiokafka.cluster import ClusterMetadata

from crawlog.streams import app as apps
from crawlog.streams import stages
from crawlog.streams.worker.crawl_app import CrawlApp
from crawlog.streams.worker.lease import boottime

STAGE: stages.Stage = os.environ["PROBE_STAGE"]  # type: ignore[assignment]  # one of the stages
HOLD_S = float(os.environ.get("PROBE_HOLD", "0"))
REVOKE_S = float(os.environ.get("PROBE_REVOKE", "0"))
BLOCK_S = float(os.environ.get("PROBE_BLOCK", "0"))
FAIL_AT = int(os.environ.get("PROBE_FAIL", "-1"))
STUCK_AT = int(os.environ.get("PROBE_SKIP", "-1"))
KNOWN_AT = time.monotonic() + float(os.environ.get("PROBE_UNKNOWN", "0"))


def forgetful(metadata: ClusterMetadata) -> dict[str, Any]:
    """The topics of a client's metadata, none of ours until KNOWN_AT."""
    topics: dict[str, Any] = metadata.__dict__["_partitions"]
    is_known = time.monotonic() >= KNOWN_AT
    return topics if is_known else {name: found for name, found in topics.items() if name.startswith("__")}


if "PROBE_UNKNOWN" in os.environ:
    partitions = property(forgetful, lambda self, topics: self.__dict__.update(_partitions=topics))
    ClusterMetadata._partitions = partitions


def attach(app: CrawlApp) -> None:
    """One agent that says each event done in offset order, and hooks that write when they are called."""
    out = Path(os.environ["PROBE_FILE"]).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115  # as long as the process

    def say(what: str, **fields: Any) -> None:
        held = app.lease.held(boottime())
        out.write(json.dumps({"what": what, "at": time.monotonic(), "lease": held} | fields) + "\n")

    async def revoking(partitions: set[int]) -> None:
        await asyncio.sleep(REVOKE_S)
        say("revoking", partitions=sorted(partitions))

    async def owned(partitions: set[int]) -> None:
        starts = [app.positions.next(p) for p in sorted(partitions)]
        say("owned", partitions=sorted(partitions), starts=starts, generation=app.consumer_generation_id)

    app.watchdog.stuck_s = float(os.environ.get("PROBE_STUCK", app.watchdog.stuck_s))
    app.on_rebalance_started.append(lambda: say("started"))
    app.on_revoking.append(revoking)
    app.on_owned.append(owned)

    @app.agent(app.input)
    async def probe(stream: Any) -> None:
        held: set[int] = set()
        app.positions.taken = taken = {}
        async for message in stream.records():
            taken[message.partition] = message.offset + 1
            say("event", partition=message.partition, offset=message.offset, value=message.value.decode())
            assert message.offset != FAIL_AT, "this record is too much"
            time.sleep(BLOCK_S)  # noqa: ASYNC251  # on purpose
            await asyncio.sleep(HOLD_S)
            if message.offset == STUCK_AT:
                held.add(message.partition)
            if message.partition not in held:
                app.positions.done(message.partition, message.offset + 1)
            say("done", partition=message.partition, offset=message.offset)


def __getattr__(name: str) -> CrawlApp:
    if name != "app":
        raise AttributeError(name)
    stages.STAGES[STAGE] = stages.STAGES[STAGE]._replace(agents=("probe",))
    return getattr(apps, STAGE)  # type: ignore[no-any-return]  # a module's attribute


if __name__ == "__main__":
    stages.STAGES[STAGE] = stages.STAGES[STAGE]._replace(agents=("probe",))
    apps.worker(STAGE)
