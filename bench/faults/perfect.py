"""What a crawl leaves behind that did everything right, for the judge to be judged by."""

import json
from typing import Any

from bench.faults import judge
from bench.faults.graph import Graph
from bench.faults.judge import Evidence, Ownership, State
from bench.faults.reader import Record
from bench.faults.site import Request

GRAPH = Graph(hosts=4, pages=60)


DELAY_S = 1.0


JOB = "judged"


def perfect() -> Evidence:
    """What a crawl leaves behind that did everything right, on one partition a host."""
    requests, urls, items, rows = [], [], [], []
    for number, (url, entry) in enumerate(sorted(GRAPH.expected.items())):
        host, _, path = url.removeprefix("http://").partition(f":{GRAPH.port}")
        partition = int(host.split(".")[-1]) - 1
        tries = {"broken": judge.ATTEMPTS, "cut": judge.ATTEMPTS, "forbidden": 0}.get(entry.kind, 1)
        requests += [asked(host, path, entry.status, 10 + 10 * number + 2 * n) for n in range(tries)]
        final = {"url": url, "status": judge.FINAL[entry.kind], "row": number, "attempt": max(tries, 1)}
        final |= {"http": entry.status} if tries and entry.status else {}
        urls.append(record(partition, 2 * number, {"v": 1, "job": JOB, "urls": [{"url": url}]}))
        urls.append(record(partition, 2 * number + 1, {"v": 1, "job": JOB, "results": [final]}))
        if entry.kind not in judge.ROWLESS:
            row = {"url": url, "status": entry.status or None, "title": entry.title}
            row["sha256"] = GRAPH.sha256(url) if entry.status else None
            rows.append(row)
            content = {"v": 1, "job": JOB, "url": url, "page": [partition, number], "items": [row]}
            items.append(record(partition, number, content)._replace(key=f"{JOB} {url}".encode()))
    requests += [asked(GRAPH.name(host), "/robots.txt", 200, 0) for host in range(GRAPH.hosts)]
    counts = {
        name: sum(judge.FINAL[one.kind] == name for one in GRAPH.expected.values())
        for name in ("fetched", "redirected", "failed", "refused")
    }
    report = record(0, 0, {"stage": "fetch", "partition": 0, "jobs": {JOB: counts}})
    summary = counts | {"queued": 0, "rows": len(rows), "reason": "finished"}
    owners = dict.fromkeys(range(GRAPH.hosts), "w0")
    ownership = [Ownership(at, at + 0.1, owners) for at in (-5.0, 1e6)]
    return Evidence(
        GRAPH, JOB, DELAY_S, requests, urls, items, [], [report], rows, summary,
        status=dict(counts), states=[State(0, "same", "same")], ownership=ownership,
    )  # fmt: skip


def asked(host: str, path: str, status: int, at: float, worker: str = "w0") -> Request:
    """A request that was answered within 0.1 s."""
    return Request(at, at + 0.1, host, path, status, complete=True, worker=f"judge/{worker}", connection=1)


def record(partition: int, offset: int, content: dict[str, Any]) -> Record:
    """A record of JSON."""
    return Record(partition, offset, None, json.dumps(content).encode(), {})


def first(kind: str) -> str:
    """A URL of some kind."""
    return next(url for url, entry in sorted(GRAPH.expected.items()) if entry.kind == kind)
