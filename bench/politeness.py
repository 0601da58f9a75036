r"""Judges a crawl by the site's access log: gaps between requests, repeated requests, robots.txt.

A line is `nanoseconds \t host \t target \t status \t user agent`, in the order of arrival. Nothing is imported from
crawlog: the judge shares no code with the accused. `python -m bench.politeness access.log --delay 0.2`
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROBOTS = "/robots.txt"
FORBIDDEN = ("/private/",)
"""Path prefixes that the synthetic site's robots.txt disallows."""


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the log.

    Attributes:
        at_ns: UTC epoch nanoseconds of its arrival.
        host: The host's address; `-` where the site does not know it.
    """

    at_ns: int
    host: str
    target: str
    status: int
    user_agent: str


@dataclass(frozen=True)
class Verdict:
    """Figures of a log.

    Attributes:
        gaps_s: Smallest gap between two requests, robots.txt included, by host; hosts asked once are absent.
        repeated: Requests of a page beyond its first, all pages together, without robots.txt; tracking parameters
            make no new page.
        robots_repeated: Requests of robots.txt beyond the first of each host.
        forbidden: Requests that robots.txt disallows.
        unasked: Hosts whose first request was not for robots.txt.
    """

    requests: int
    hosts: int
    gaps_s: dict[str, float]
    repeated: int
    robots_repeated: int
    forbidden: list[Request]
    unasked: list[str]

    @property
    def smallest_gap_s(self) -> float:
        """The smallest gap of any host; infinite when no host was asked twice."""
        return min(self.gaps_s.values(), default=math.inf)

    def offenders(self, delay_s: float) -> dict[str, float]:
        """The hosts with a gap under `delay_s`, and that gap."""
        return {host: gap for host, gap in self.gaps_s.items() if gap < delay_s}


def read_log(path: Path) -> list[Request]:
    """The requests of an access log; a torn last line (the site was killed) is left out."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        return list(_parse(lines))


def _parse(lines: Iterable[str]) -> Iterator[Request]:
    for line in lines:
        fields = line.rstrip("\n").split("\t")
        if line.endswith("\n") and len(fields) == 5:
            yield Request(int(fields[0]), fields[1], fields[2], int(fields[3]), fields[4])


def page_of(target: str) -> str:
    """The page that a target names: without the tracking parameters that the site adds."""
    at = target.find("utm_")
    return target[: at - 1] if at > 0 and target[at - 1] in "?&" else target


def smallest_gaps(requests: Iterable[Request]) -> dict[str, float]:
    """Seconds between the two closest requests of each host that was asked more than once."""
    last: dict[str, int] = {}
    gaps: dict[str, float] = {}
    for request in sorted(requests, key=lambda request: request.at_ns):  # lines of parallel requests may swap
        if request.host in last:
            gap = (request.at_ns - last[request.host]) / 1e9
            gaps[request.host] = min(gap, gaps.get(request.host, math.inf))
        last[request.host] = request.at_ns
    return gaps


def repeats(requests: Iterable[Request]) -> Counter[tuple[str, str]]:
    """(host, page) → requests beyond the first, robots.txt included."""
    counts = Counter((request.host, page_of(request.target)) for request in requests)
    return Counter({page: count - 1 for page, count in counts.items() if count > 1})


def forbidden(requests: Iterable[Request], prefixes: Sequence[str] = FORBIDDEN) -> list[Request]:
    """The requests whose path starts with a disallowed prefix."""
    return [request for request in requests if request.target.startswith(tuple(prefixes))]


def judge(requests: Sequence[Request], prefixes: Sequence[str] = FORBIDDEN) -> Verdict:
    """Everything there is to say about a log."""
    again = repeats(requests)
    firsts: dict[str, str] = {}
    for request in requests:
        firsts.setdefault(request.host, request.target)
    robots_again = sum(count for (_, page), count in again.items() if page == ROBOTS)
    return Verdict(
        requests=len(requests),
        hosts=len(firsts),
        gaps_s=smallest_gaps(requests),
        repeated=again.total() - robots_again,
        robots_repeated=robots_again,
        forbidden=forbidden(requests, prefixes),
        unasked=[host for host, target in firsts.items() if target != ROBOTS],
    )


def main() -> int:
    """Prints the verdict; 1 when the crawl was impolite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--delay", type=float, default=0.0, help="least gap allowed, seconds")
    parser.add_argument("--repeats", type=int, default=0, help="repeated page requests allowed")
    args = parser.parse_args()
    requests = read_log(args.log)
    if not requests:
        sys.exit(f"no request in {args.log}")
    verdict = judge(requests)
    offenders = verdict.offenders(args.delay)
    print(f"requests           {verdict.requests:>10,} on {verdict.hosts:,} hosts")
    print(f"smallest gap       {verdict.smallest_gap_s:>10.4f} s; under {args.delay} s: {len(offenders)} hosts")
    for host, gap in sorted(offenders.items(), key=lambda item: item[1])[:10]:
        print(f"    {host:<16} {gap:.4f} s")
    print(f"repeated pages     {verdict.repeated:>10,}; robots.txt again: {verdict.robots_repeated}")
    for (host, page), count in repeats(requests).most_common(5):
        print(f"    {host:<16} {page} +{count}")
    print(
        f"robots violations  {len(verdict.forbidden):>10,}; hosts asked before their robots.txt: {len(verdict.unasked)}"
    )
    return 1 if offenders or verdict.forbidden or verdict.unasked or verdict.repeated > args.repeats else 0


if __name__ == "__main__":
    sys.exit(main())
