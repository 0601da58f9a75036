"""The verdict on several runs on one cluster: each way to break a promise is found."""

from collections.abc import Callable

import pytest

from bench.faults import judge
from bench.faults.graph import Graph
from bench.faults.site import Request
from bench.runs import DELAY_S, Ended, Size, expected, hosts_of, judged

SIZE = Size(hosts=3, shared=1, pages=30)
GRAPH = Graph(hosts=5, pages=30)


def perfect() -> tuple[list[Ended], list[Request]]:
    """Two runs that did everything right, one request after the other."""
    ended, requests = [], []
    at = 10.0
    for number in range(2):
        hosts = hosts_of(number, SIZE)
        known = expected(GRAPH, hosts)
        for url, entry in known.items():
            host, _, path = url.removeprefix("http://").partition(f":{GRAPH.port}")
            tries = {"broken": judge.ATTEMPTS, "cut": judge.ATTEMPTS, "forbidden": 0}.get(entry.kind, 1)
            for _ in range(tries):
                at += 1
                requests.append(Request(at, at + 0.1, host, path, entry.status, complete=True, worker="", connection=1))
        rows = [{"url": url} for url, entry in known.items() if entry.kind not in judge.ROWLESS]
        ended.append(Ended(f"job-{number}", 0, hosts, rows))
    requests += [
        Request(1, 1.1, GRAPH.name(number), judge.ROBOTS, 200, complete=True, worker="", connection=1)
        for number in range(GRAPH.hosts)
    ]
    return ended, requests


def row_gone(ended: list[Ended], requests: list[Request]) -> None:
    """A FILE without a row."""
    del ended[1].rows[0]


def row_twice(ended: list[Ended], requests: list[Request]) -> None:
    """A FILE with a row too many."""
    ended[1].rows.append(ended[1].rows[0])


def row_of_other(ended: list[Ended], requests: list[Request]) -> None:
    """A FILE with a row of the other job."""
    others = {row["url"] for row in ended[1].rows}
    ended[1].rows.append(next(row for row in ended[0].rows if row["url"] not in others))


def failed(ended: list[Ended], requests: list[Request]) -> None:
    """A run with an exit code."""
    ended[0] = ended[0]._replace(code=3)


def never_ended(ended: list[Ended], requests: list[Request]) -> None:
    """A run without one."""
    ended[0] = ended[0]._replace(code=None)


def again(ended: list[Ended], requests: list[Request]) -> None:
    """A page that nobody was due."""
    requests.append(requests[0]._replace(began=5000, ended=5001))


def only_once(ended: list[Ended], requests: list[Request]) -> None:
    """A page of a shared host that was asked for by one of two runs."""
    del requests[0]


def too_soon(ended: list[Ended], requests: list[Request]) -> None:
    """Two requests to a host with less than the delay between them."""
    first = requests[0]
    requests.append(first._replace(began=first.began + DELAY_S / 2, ended=first.began + DELAY_S))


DOCTORS: dict[str, Callable[[list[Ended], list[Request]], None]] = {
    "job-1 has no row": row_gone,
    "job-1 has many rows": row_twice,
    "job-1 has a row of no page": row_of_other,
    "job-0: exit 3": failed,
    "job-0: exit None": never_ended,
    "asked for too often": again,
    "asked for too rarely": only_once,
    "hurried": too_soon,
}


def test_the_graph_of_two_runs_has_every_kind() -> None:
    """Otherwise the perfect runs prove less than they say."""
    kinds = {entry.kind for entry in expected(GRAPH, hosts_of(0, SIZE)).values()}
    assert {"page", "missing", "broken", "moved", "forbidden"} <= kinds


def test_runs_share_some_hosts_and_have_others_alone() -> None:
    """Politeness over all is judged at the shared ones."""
    first, second = hosts_of(0, SIZE), hosts_of(1, SIZE)
    assert len(first) == len(second) == SIZE.hosts
    assert len(first & second) == SIZE.shared
    assert first | second == set(range(GRAPH.hosts))


def test_perfect_runs_keep_every_promise() -> None:
    """Nothing is found where nothing is wrong."""
    assert judged(GRAPH, *perfect()) == []


@pytest.mark.parametrize("promise", DOCTORS)
def test_a_broken_promise_is_found(promise: str) -> None:
    """Each is said in a line of its own."""
    ended, requests = perfect()
    DOCTORS[promise](ended, requests)
    found = judged(GRAPH, ended, requests)
    assert any(problem.startswith(promise) for problem in found), found
