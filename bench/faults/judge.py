"""The verdict: the log is compared with the site's graph and its access log. Pure, and nothing of crawlog's.

Each check returns a `Finding`: how often, and the first few places. A check that nothing can make fail is worthless, so
the tests doctor the evidence for every one of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from bench.faults import reader
from bench.faults.graph import Entry, Graph
from bench.faults.reader import Record
from bench.faults.site import Request

ROBOTS = "/robots.txt"

SLACK = 0.95
"""Part of the delay that a gap must have: the two ends of a loopback connection do not tick together."""

ATTEMPTS = 3
"""Requests for a URL that always fails: `fetch.attempts`."""

EXAMPLES = 5

ROWLESS = frozenset({"moved", "forbidden"})
"""Kinds that end without a row."""

FINAL = {"page": "fetched", "missing": "fetched", "broken": "fetched", "moved": "redirected", "cut": "failed",
         "forbidden": "refused"}  # fmt: skip
"""What the last done of each kind must say; an answer is an answer, whatever its status."""


class Finding(NamedTuple):
    """Result of a check."""

    times: int
    examples: tuple[str, ...] = ()


class Ownership(NamedTuple):
    """The owner of each partition of crawl.urls, as the broker said between two moments of the site's clock."""

    asked: float
    answered: float
    owners: dict[int, str]


class Poison(NamedTuple):
    """A record that the harness put into a topic and that must be in crawl.dead, unless it is harmless.

    Attributes:
        is_dead: Whether it must be there; a bare but sensible record is merely another URL.
    """

    kind: str
    topic: str
    partition: int
    offset: int
    is_dead: bool = True


class State(NamedTuple):
    """A partition's state and a second fold of its log, as digests."""

    partition: int
    kept: str
    folded: str


@dataclass
class Evidence:
    """All that was seen of one run.

    Attributes:
        job: Whose results are judged.
        delay_s: The politeness that was promised.
        prefix: Of the topics.
        urls, items, dead, progress: The topics, as they lie in the log.
        rows: The result file, line by line.
        summary: Summary of `crawlog run --json`; empty when it never did.
        status: The job as `crawlog status --json` had it; empty when it did not say.
        recounts: Whether it was asked.
        is_cut: The log was cut or made anew on purpose: dones that are missing prove nothing.
        excused: URLs that poison brought; they are no page of the site.
        spoilt: Pages that the spider always raises on: they must be in crawl.dead, by their offset and with a reason.
        has_spider: Only answers give rows, failures do not.
    """

    graph: Graph
    job: str
    delay_s: float
    requests: Sequence[Request]
    urls: list[Record]
    items: list[Record]
    dead: list[Record]
    progress: list[Record]
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    status: dict[str, Any] = field(default_factory=dict)
    recounts: bool = True
    states: list[State] = field(default_factory=list)
    ownership: list[Ownership] = field(default_factory=list)
    poison: list[Poison] = field(default_factory=list)
    prefix: str = "crawl."
    is_cut: bool = False
    excused: frozenset[str] = frozenset()
    spoilt: frozenset[str] = frozenset()
    has_spider: bool = False

    @cached_property
    def by_host(self) -> dict[str, list[Request]]:
        """Each host's requests, in the order of arrival."""
        known: dict[str, list[Request]] = {}
        for request in sorted(self.requests):
            known.setdefault(request.host, []).append(request)
        return known

    @cached_property
    def hits(self) -> dict[str, list[Request]]:
        """Requests by the URL that they were for, robots.txt left out."""
        port = self.graph.port
        found: dict[str, list[Request]] = {}
        for request in self.requests:
            if request.path != ROBOTS:
                found.setdefault(f"http://{request.host}:{port}{request.path}", []).append(request)
        return found

    @cached_property
    def finals(self) -> dict[str, reader.Done]:
        """The first final result of each URL of the job: a later one changes nothing."""
        found: dict[str, reader.Done] = {}
        for done in reader.dones(self.urls):
            if done.job == self.job and done.is_final:
                found.setdefault(done.url, done)
        return found

    @cached_property
    def results(self) -> dict[str, list[tuple[tuple[int, int], list[dict[str, Any]]]]]:
        """(page, rows) of each record in crawl.items, by URL."""
        found: dict[str, list[tuple[tuple[int, int], list[dict[str, Any]]]]] = {}
        for url, page, rows in reader.items(self.items, self.job):
            found.setdefault(url, []).append((page, rows))
        return found

    @cached_property
    def row_urls(self) -> Counter[str]:
        """How many rows of the file each URL has."""
        return Counter(str(row.get("url")) for row in self.rows)

    @cached_property
    def buried(self) -> dict[str, tuple[str, str, str]]:
        """Places of the pages in crawl.dead, by URL."""
        found = {}
        for letter in self.dead:
            if letter.headers.get("error") and letter.headers.get("topic") == f"{self.prefix}pages":
                meta = Record(0, 0, None, letter.headers.get("crawlog", "").encode(), {}).json or {}
                found[str(meta.get("url"))] = _place(letter)
        return found

    def is_recorded(self, url: str, entry: Entry) -> bool:
        """Whether a URL ended: with a final result, and with its row where it has one."""
        if url in self.spoilt:
            return url in self.finals and url in self.buried
        is_rowless = entry.kind in ROWLESS or (self.has_spider and entry.kind == "cut")
        has_row = is_rowless or (url in self.row_urls and any(rows for _, rows in self.results.get(url, ())))
        return has_row and (url in self.finals or self.is_cut)


Check = Callable[[Evidence], Finding]


def _finding(places: Iterable[str]) -> Finding:
    found = sorted(places)
    return Finding(len(found), tuple(found[:EXAMPLES]))


def lost(seen: Evidence) -> Finding:
    """URLs that can be reached and did not end as a record."""
    return _finding(url for url, entry in seen.graph.expected.items() if not seen.is_recorded(url, entry))


def unrecorded(seen: Evidence) -> Finding:
    """URLs that were answered completely and did not end as a record."""
    expected = seen.graph.expected
    return _finding(
        url
        for url, hits in seen.hits.items()
        if url in expected and any(hit.complete for hit in hits) and not seen.is_recorded(url, expected[url])
    )


def doubled(seen: Evidence) -> Finding:
    """Rows of the file beyond one a URL, and URLs with two keys in crawl.items."""
    many = (f"{url}: {count} rows" for url, count in seen.row_urls.items() if count > 1)
    keys: dict[str, set[bytes]] = {}
    for record in seen.items:
        if (content := record.json) and content.get("job") == seen.job:
            keys.setdefault(str(content.get("url")), set()).add(record.key or b"")
    return _finding([*many, *(f"{url}: keys {sorted(names)}" for url, names in keys.items() if len(names) > 1)])


def wrong(seen: Evidence) -> Finding:
    """Rows that differ from the site's answer, and rows or records of URLs that are no pages."""
    return _finding(place for row in seen.rows if (place := _wrong_row(seen, row))) if seen.rows else Finding(0)


def _wrong_row(seen: Evidence, row: dict[str, Any]) -> str:
    url = str(row.get("url"))
    entry = seen.graph.expected.get(url)
    if entry is None or entry.kind in ROWLESS:
        return "" if url in seen.excused else f"{url}: a row of no page"
    wanted: tuple[object, ...] = (entry.status or None, entry.title if entry.kind == "page" else row.get("title"))
    wanted += (seen.graph.sha256(url) if entry.status else None,)
    got = row.get("status"), row.get("title"), row.get("sha256")
    return "" if got == wanted else f"{url}: {got}, not {wanted}"


def misjudged(seen: Evidence) -> Finding:
    """Final results in crawl.urls that differ from the site's answer."""
    return _finding(place for url, done in seen.finals.items() if (place := _misjudged(seen, url, done)))


def _misjudged(seen: Evidence, url: str, done: reader.Done) -> str:
    entry = seen.graph.expected.get(url)
    if entry is None:
        return "" if url in seen.excused else f"{url}: {done.status}, it is no page"
    if entry.kind != "forbidden" and not any(hit.complete for hit in seen.hits.get(url, ())):
        return f"{url}: {done.status}, the site never answered it"
    status = 0 if entry.kind == "forbidden" else entry.status
    is_right = done.status == FINAL[entry.kind] and (done.http or 0) == status
    return "" if is_right else f"{url}: {done.status} {done.http}, it is {entry.kind}"


def repeated(seen: Evidence) -> Finding:
    """Complete answers beyond those that a URL is due: one, and the attempts of one that always fails."""
    found = Counter[str]()
    for url, hits in seen.hits.items():
        entry = seen.graph.expected.get(url)
        due = ATTEMPTS if entry is not None and entry.kind in ("broken", "cut") else 1
        found[url] = max(0, sum(hit.complete for hit in hits) - due)
    examples = tuple(f"{url}: {count} too many" for url, count in found.most_common(EXAMPLES) if count)
    return Finding(found.total(), examples)


def stray(seen: Evidence) -> Finding:
    """Requests for URLs that no page links to."""
    known = seen.graph.expected.keys() | seen.excused
    return _finding(f"{url}: {len(hits)}" for url, hits in seen.hits.items() if url not in known)


def hurried(seen: Evidence) -> Finding:
    """Requests that came to a host before its rest was over; robots.txt counts."""
    return _finding(
        f"{host}: {second.path} {second.began - first.began:.3f} s after {first.path}"
        for host, requests in seen.by_host.items()
        for first, second in pairwise(requests)
        if second.began - first.began < SLACK * seen.delay_s
    )


def crowded(seen: Evidence) -> Finding:
    """Requests that came to a host while another one was not answered yet."""
    return _finding(
        f"{host}: {second.path} while {first.path}"
        for host, requests in seen.by_host.items()
        for first, second in pairwise(requests)
        if second.began < first.ended
    )


def against_robots(seen: Evidence) -> Finding:
    """Requests that robots.txt forbids, and pages asked for before it was answered."""
    return _finding(place for host, requests in seen.by_host.items() for place in _against_robots(seen, host, requests))


def _against_robots(seen: Evidence, host: str, requests: list[Request]) -> list[str]:
    answered = min((one.ended for one in requests if one.path == ROBOTS and one.complete), default=float("inf"))
    expected = seen.graph.expected
    places = []
    for one in requests:
        entry = expected.get(f"http://{host}:{seen.graph.port}{one.path}")
        if one.path != ROBOTS and one.began < answered:
            places.append(f"{host}{one.path}: before {ROBOTS}")
        if entry is not None and entry.kind == "forbidden":
            places.append(f"{host}{one.path}: forbidden")
    return places


def foreign(seen: Evidence) -> Finding:
    """Requests by a worker for a domain that the broker had given to another one, before and after the request.

    A run in which nobody learned who owned what is as bad.
    """
    if not any(sample.owners for sample in seen.ownership):
        return Finding(1, ("no owner of a partition was seen",))
    partitions = {done.url.split("/")[2].partition(":")[0]: done.partition for done in reader.dones(seen.urls)}
    places = []
    samples = pairwise(sorted(seen.ownership, key=lambda sample: sample.asked))
    window = next(samples, None)
    for request in sorted(seen.requests):
        while window is not None and window[1].asked < request.began:
            window = next(samples, None)
        if window is None:
            break
        before, after = (sample.owners.get(partitions.get(request.host, -1)) for sample in window)
        is_sure = before is not None and before == after and window[0].answered <= request.began
        if is_sure and request.worker.rpartition("/")[2] != before:
            places.append(f"{request.worker} asked {request.host}{request.path}, which {before} owned")
    return _finding(places)


def unburied(seen: Evidence) -> Finding:
    """Poison that is not in crawl.dead with its place and a reason, and dead letters of good records."""
    letters = Counter(_place(letter) for letter in seen.dead if letter.headers.get("error"))
    known = {(one.topic, str(one.partition), str(one.offset)) for one in seen.poison}
    known |= {place for url, place in seen.buried.items() if url in seen.spoilt}
    places = [
        f"{one.kind} at {one.topic}[{one.partition}] {one.offset}: not in {seen.prefix}dead"
        for one in seen.poison
        if one.is_dead and not letters[one.topic, str(one.partition), str(one.offset)]
    ]
    places += [f"{url}: always raises, not in {seen.prefix}dead" for url in seen.spoilt - seen.buried.keys()]
    places += [f"{place}: a good record" for place in letters if place not in known]
    places += [f"{letter.offset}: no reason" for letter in seen.dead if not letter.headers.get("error")]
    return _finding(places)


def _place(letter: Record) -> tuple[str, str, str]:
    """Topic, partition and offset that a dead letter names."""
    topic, partition, offset = (letter.headers.get(name, "") for name in ("topic", "partition", "offset"))
    return topic, partition, offset


def disagreeing(seen: Evidence) -> Finding:
    """Counters of crawlog that say another thing than the log, and two tellers that differ."""
    if not seen.summary:
        return Finding(1, ("no summary: the run never ended",))
    truth = _truth(seen)
    summary = {name: seen.summary.get(name) for name in truth}
    reported = _reported(seen)
    tellers = {"summary": summary, "progress": {name: reported.get(name) for name in truth}}
    if seen.status:
        tellers["status"] = {name: seen.status[name] for name in truth if name in seen.status}
    places = [
        f"{teller} says {name} {told[name]}, the log {truth[name]}"
        for teller, told in tellers.items()
        for name in told
        if told[name] != truth[name] and not seen.is_cut
    ]
    if seen.recounts and not seen.status:
        places.append("`crawlog status` did not answer")
    rows, keys = len(seen.rows), sum(any(rows for _, rows in results) for results in seen.results.values())
    if seen.summary.get("rows") != rows or rows != keys:
        places.append(f"rows: summary {seen.summary.get('rows')}, file {rows}, keys in {seen.prefix}items {keys}")
    if not seen.poison and not seen.is_cut:
        places += _unbalanced(seen, reported)
    return _finding(places)


def _truth(seen: Evidence) -> dict[str, int]:
    counts = Counter(done.status for done in seen.finals.values())
    found = {name: counts[name] for name in ("fetched", "redirected", "failed", "refused")}
    return found | {"queued": len(seen.graph.expected.keys() - seen.finals.keys())}


def _reported(seen: Evidence) -> dict[str, int]:
    """The newest report of each partition, added up."""
    total = Counter[str]()
    for report in reader.newest_reports(seen.progress).values():
        counts = (report.get("jobs") or {}).get(seen.job) or {}
        total.update({name: count for name, count in counts.items() if isinstance(count, int)})
        total["dropped"] += sum((counts.get("dropped") or {}).values())
    return {name: total[name] for name in ("fetched", "redirected", "failed", "refused", "queued", "seen", "bad")} | {
        "dropped": total["dropped"]
    }


def _unbalanced(seen: Evidence, reported: dict[str, int]) -> list[str]:
    """Every entry that was offered was new, known, dropped or bad."""
    entries = sum(1 for _ in reader.offered(seen.urls, seen.job))
    sums = ("fetched", "redirected", "failed", "refused", "queued", "seen", "dropped", "bad")
    told = sum(reported[name] for name in sums)
    return [] if entries == told else [f"{entries} URLs were offered, the counters of progress add up to {told}"]


def unequal(seen: Evidence) -> Finding:
    """States that are not the fold of their log; none at all is as bad."""
    places = [f"{state.partition}: {state.kept}, {state.folded}" for state in seen.states if state.kept != state.folded]
    return _finding(places if seen.states else ["no state was compared"])


def silent(seen: Evidence) -> Finding:
    """A run that says it is finished, and is not."""
    missing = lost(seen).times
    says_so = seen.summary.get("reason") == "finished"
    return Finding(1, (f"finished, with {missing} lost",)) if says_so and missing else Finding(0)


CHECKS: dict[str, Check] = {
    "lost": lost,
    "unrecorded": unrecorded,
    "doubled": doubled,
    "wrong": wrong,
    "misjudged": misjudged,
    "repeated": repeated,
    "stray": stray,
    "hurried": hurried,
    "crowded": crowded,
    "robots": against_robots,
    "foreign": foreign,
    "dead": unburied,
    "counters": disagreeing,
    "states": unequal,
    "silent": silent,
}
"""By the name of its column."""


def judge(seen: Evidence) -> dict[str, Finding]:
    """Results of all checks."""
    return {name: check(seen) for name, check in CHECKS.items()}


def again_percent(seen: Evidence, findings: dict[str, Finding]) -> float:
    """Requests repeated, in percent of the pages."""
    return 100 * findings["repeated"].times / len(seen.graph.expected)


def raw_doubles(seen: Evidence) -> int:
    """Records in crawl.items beyond one a key: each is harmless, since it replaces the one before."""
    return sum(len(results) - 1 for results in seen.results.values())
