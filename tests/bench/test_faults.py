# the names of the doctors say what they do
"""The judge is judged: evidence of a perfect crawl passes, and each way to doctor it is found. Then one real run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.faults import judge, reader
from bench.faults.crawl import Size
from bench.faults.disks import FullBroker, FullState
from bench.faults.exceptions import SPIDER, Exceptions
from bench.faults.graph import Graph, Target
from bench.faults.judge import CHECKS, Evidence, Poison, State
from bench.faults.mixed import DEEDS, Mixed
from bench.faults.perfect import DELAY_S, GRAPH, JOB, asked, first, perfect, record
from bench.faults.power import PowerCut
from bench.faults.reader import Record
from bench.faults.schedule import Fault, broken, run
from crawlog.commands.named_spider import facts_of
from crawlog.streams.settings.sources import load
from crawlog.streams.spiders import SpiderRef


def place(url: str) -> tuple[str, str]:
    """Host and path."""
    host, _, path = url.removeprefix("http://").partition(f":{GRAPH.port}")
    return host, path


# Each of these makes one check fail.


def without_item(seen: Evidence) -> None:
    seen.items[:] = [one for one in seen.items if (one.json or {})["url"] != first("page")]


def without_row(seen: Evidence) -> None:
    seen.rows[:] = [row for row in seen.rows if row["url"] != first("missing")]


def without_done(seen: Evidence) -> None:
    seen.urls[:] = [one for one in seen.urls if first("moved") not in str(one.value) or b"results" not in one.value]  # type: ignore[operator]  # a value is there


def row_twice(seen: Evidence) -> None:
    seen.rows.append(seen.rows[0])


def key_twice(seen: Evidence) -> None:
    seen.items.append(seen.items[0]._replace(key=b"judged another"))


def wrong_title(seen: Evidence) -> None:
    seen.rows[0] = seen.rows[0] | {"title": "something else"}


def wrong_body(seen: Evidence) -> None:
    seen.rows[0] = seen.rows[0] | {"sha256": "0" * 64}


def row_of_nothing(seen: Evidence) -> None:
    seen.rows.append({"url": "http://127.3.0.1:8900/invented", "status": 200})


def wrong_status(seen: Evidence) -> None:
    content = {"v": 1, "job": JOB, "results": [{"url": first("page"), "status": "failed", "http": 500}]}
    seen.urls.insert(0, record(0, -1, content))


def never_answered(seen: Evidence) -> None:
    host, path = place(first("page"))
    seen.requests = [one for one in seen.requests if (one.host, one.path) != (host, path)]


def asked_again(seen: Evidence) -> None:
    seen.requests = [*seen.requests, asked(*place(first("page")), 200, 5000)]


def failed_too_often(seen: Evidence) -> None:
    seen.requests = [*seen.requests, asked(*place(first("broken")), 500, 5000)]


def asked_for_nothing(seen: Evidence) -> None:
    seen.requests = [*seen.requests, asked("127.3.0.1", "/invented", 404, 5000)]


def too_soon(seen: Evidence) -> None:
    last = max(seen.requests)
    seen.requests = [*seen.requests, last._replace(began=last.began + 0.9 * DELAY_S, ended=last.began + DELAY_S)]


def two_at_a_time(seen: Evidence) -> None:
    last = max(seen.requests)
    seen.requests = [*seen.requests, last._replace(began=last.began + 2), last._replace(ended=last.began + 3)]


def forbidden(seen: Evidence) -> None:
    seen.requests = [*seen.requests, asked(*place(first("forbidden")), 200, 5000)]


def before_robots(seen: Evidence) -> None:
    seen.requests = [one._replace(began=400, ended=401) if one.path == judge.ROBOTS else one for one in seen.requests]


def not_owned(seen: Evidence) -> None:
    seen.ownership = [one._replace(owners=one.owners | {0: "w1"}) for one in seen.ownership]


def no_owner(seen: Evidence) -> None:
    seen.ownership = [one._replace(owners={}) for one in seen.ownership]


def not_buried(seen: Evidence) -> None:
    seen.poison.append(Poison("not JSON", "crawl.urls", 1, 17))


def buried_alive(seen: Evidence) -> None:
    headers = {"topic": "crawl.pages", "partition": "1", "offset": "17", "error": "why"}
    seen.dead.append(Record(0, 0, None, b"", headers))


def not_buried_though_it_raises(seen: Evidence) -> None:
    seen.spoilt = frozenset({first("page")})


def without_reason(seen: Evidence) -> None:
    seen.dead.append(Record(0, 0, None, b"", {"topic": "crawl.pages", "partition": "1", "offset": "17"}))


def wrong_summary(seen: Evidence) -> None:
    seen.summary["fetched"] += 1


def wrong_report(seen: Evidence) -> None:
    seen.progress.append(record(0, 1, {"stage": "fetch", "partition": 1, "jobs": {JOB: {"fetched": 1}}}))


def wrong_status_command(seen: Evidence) -> None:
    seen.status["failed"] += 1


def no_status_command(seen: Evidence) -> None:
    seen.status.clear()


def wrong_row_count(seen: Evidence) -> None:
    seen.summary["rows"] -= 1


def unbalanced(seen: Evidence) -> None:
    seen.urls.append(record(0, 10_000, {"v": 1, "job": JOB, "urls": [{"url": first("page")}]}))


def without_summary(seen: Evidence) -> None:
    seen.summary.clear()


def other_state(seen: Evidence) -> None:
    seen.states.append(State(1, "this", "that"))


def no_state(seen: Evidence) -> None:
    seen.states.clear()


DOCTORED: dict[str, tuple[Callable[[Evidence], None], ...]] = {
    "lost": (without_item, without_row, without_done),
    "unrecorded": (without_item, without_row, without_done),
    "doubled": (row_twice, key_twice),
    "wrong": (wrong_title, wrong_body, row_of_nothing),
    "misjudged": (wrong_status, never_answered),
    "repeated": (asked_again, failed_too_often),
    "stray": (asked_for_nothing,),
    "hurried": (too_soon,),
    "crowded": (two_at_a_time,),
    "robots": (forbidden, before_robots),
    "foreign": (not_owned, no_owner),
    "dead": (not_buried, buried_alive, not_buried_though_it_raises, without_reason),
    "counters": (
        *(wrong_summary, wrong_report, wrong_status_command, no_status_command, wrong_row_count, unbalanced),
        without_summary,
    ),
    "states": (other_state, no_state),
    "silent": (without_item,),
}
CASES = [(check, doctor) for check, doctors in DOCTORED.items() for doctor in doctors]


def test_every_check_is_doctored() -> None:
    """A check that cannot fail proves nothing."""
    assert DOCTORED.keys() == CHECKS.keys()


def test_a_perfect_crawl_passes() -> None:
    """Nothing is found where nothing is wrong."""
    found = judge.judge(perfect())
    assert {name: finding.examples for name, finding in found.items() if finding.times} == {}


@pytest.mark.parametrize(("check", "doctor"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_doctored_evidence_is_found(check: str, doctor: Callable[[Evidence], None]) -> None:
    """With a place where to look, and once only where it happened once."""
    seen = perfect()
    doctor(seen)
    finding = CHECKS[check](seen)
    assert finding.times >= 1
    assert finding.examples


def test_a_zombie_between_two_owners_is_no_proof() -> None:
    """While the broker moves a partition, either may have asked."""
    seen = perfect()
    seen.ownership[1] = seen.ownership[1]._replace(owners=dict.fromkeys(range(4), "w1"))
    assert CHECKS["foreign"](seen).times == 0


def test_reports_count_the_whole_log_only_when_the_owner_has_reported_after_a_zombie() -> None:
    """A worker that goes on after a stop tells once more how far it was; the owner's next report follows."""

    def told(worker: str, partition: int, offset: int) -> Record:
        return record(0, 0, {"stage": "fetch", "worker": worker, "partition": partition, "offset": offset})

    ends = {0: 64, 1: 38, 2: 0}
    progress = [told("w0", 0, 64), told("w0", 1, 38), record(0, 0, {"stage": "parse", "partition": 0, "offset": 7})]
    assert reader.have_passed(progress, ends)
    progress.append(told("zombie", 0, 45))
    assert not reader.have_passed(progress, ends)
    progress.append(told("w0", 0, 64))
    assert reader.have_passed(progress, ends)
    assert not reader.have_passed(progress[1:2], ends), "nobody has reported partition 0"


def test_the_graph_is_a_function_of_its_seed() -> None:
    """Two processes, the site and the judge, must see the same one; another seed is another site."""
    same, other = Graph(4, 60), Graph(4, 60, seed=4)
    assert same.expected == GRAPH.expected
    assert {same.body(target) for target in same.entries} == {GRAPH.body(target) for target in GRAPH.entries}
    assert other.expected.keys() != GRAPH.expected.keys()


def test_every_path_can_be_reached() -> None:
    """What is not linked cannot be lost."""
    reached = {Target(host, path) for host, path in map(_target, GRAPH.expected)}
    assert {target for target, entry in GRAPH.entries.items() if entry.kind != "forbidden"} <= reached


def _target(url: str) -> tuple[int, str]:
    host, path = place(url)
    return int(host.split(".")[-1]) - 1, path


def test_the_small_site_has_every_kind() -> None:
    """Otherwise the cases above would prove less than they say."""
    kinds = {entry.kind for entry in GRAPH.expected.values()}
    assert kinds == {"page", "missing", "broken", "moved", "cut", "forbidden"}


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_a_crawl_under_faults_keeps_every_promise(tmp_path: Path) -> None:
    """A kill of each kind of process, poison and a zombie, in one crawl; `make faults` does more of all."""
    size = Size(hosts=10, pages=20, delay_s=0.5, latency_s=(0.0, 0.05), concurrency=8)
    outcome = run(Mixed(), 1, size, tmp_path / "mixed")
    assert outcome.problems == []
    assert outcome.pending == len(DEEDS)


def test_the_flaky_spider_loads_with_the_settings_of_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spider's process gets only those variables of the environment that `spider.env` names."""
    monkeypatch.setenv("FLAKY_PAGES", "20")
    monkeypatch.setenv("FLAKY_SHARE", "8")
    facts_of(SpiderRef(str(SPIDER)), load(Exceptions.settings))


@pytest.mark.parametrize("fault", [FullState(), FullBroker(), PowerCut()], ids=lambda fault: fault.name)
def test_a_silent_or_slow_fault_breaks_its_promise(fault: Fault) -> None:
    """A figure that is promised has a limit; without one it is shown and judged by nobody."""
    assert broken(fault, {"silent": 0.0, "goes on after s": 15.0}) == []
    assert broken(fault, {"silent": 1.0}) == ["silent: 1, at most 0"]
    if not isinstance(fault, PowerCut):
        assert broken(fault, {"goes on after s": 46.0}) == ["goes on after s: 46, at most 15"]
