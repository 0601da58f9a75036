"""Hosts that may never answer: how many places they hold, and how long a request to them lasts. Pure: time is `now`.

A host is MET once it has answered a request for a page, NEW before, and SILENT while its last request had no whole
answer. NEW and SILENT ones together are strangers. Whether a host is silent stands in its row, as failures in a row.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from crawlog.streams.fold import HostRow
    from crawlog.streams.http import Answer

MET, NEW, SILENT = range(3)  # A host's standing

EVERYBODY = (True, True, True)  # By standing, whether a host may have a place

# A request gives its place back after this time without an answer, and goes on. So a place serves ten first contacts a
# second, and 128 places ask 5,000 hosts in 4 s.
LATE_S = 0.1

# The same for a silent host. It is longer so that retries are spread when very many hosts fail together.
SILENT_LATE_S = 0.5

FLOOR_S = 3.0  # Shortest timeout: a lost packet, DNS, and the round trips of TCP and TLS fit in

SHORT = 6.0  # Where places are short, a stranger's first attempt lasts `fetch.timeout_s` divided by this

# Where late requests fill more than one part in so many of their room, a first attempt lasts `FLOOR_S`: most hosts do
# not answer.
CROWDED = 4

AGAIN = 4.0  # Each further attempt lasts so many times longer; the last one has the usual time, so no slow host is lost

OF_NETWORK = 4  # So many failures of a network count as one of an address, since a network has many hosts

REMEMBERED = 20_000  # Domains, addresses and networks whose failures are remembered


class Shares:
    """How many places requests hold, by the standing of their hosts.

    Strangers hold at most half of the places, and silent ones half of that. So hosts that answer have one half, new
    ones a quarter. A request that may be late holds a place only while it is young.

    Args:
        most_late: Room for requests that wait without a place, half of it for silent hosts; others keep their place.

    Attributes:
        ages_at: When the next request will be late. One without room to be late waits until another ends.
    """

    def __init__(self, most_late: int) -> None:
        self._most_late = most_late
        self._holds = [0, 0, 0]
        self._late = [0, 0, 0]
        self._young: tuple[dict[Hashable, tuple[float, int]], ...] = ({}, {}, {})  # each in the order they came
        self._held: dict[Hashable, tuple[list[int], int, int]] = {}
        self.ages_at = inf
        self._is_crowded = False

    def take(self, one: Hashable, standing: int, young_from: float | None = None, room: int = 1) -> None:
        """A request begins.

        Args:
            young_from: Now, if it may be late; else it holds its place until it ends.
            room: Room that it takes when it is late.
        """
        self._held[one] = self._holds, standing, 1
        self._holds[standing] += 1
        if young_from is not None:
            self._young[standing][one] = young_from, room
            self.ages_at = min(self.ages_at, young_from + _late_s(standing))

    def free(self, one: Hashable) -> None:
        counts, standing, taken = self._held.pop(one, (None, MET, 0))
        if counts is not None:
            counts[standing] -= taken
            self._young[standing].pop(one, None)

    def age(self, now: float) -> None:
        """Take the places back from requests that are no longer young, as far as there is room for late ones."""
        if now < self.ages_at and not self._is_crowded:
            return
        self.ages_at, self._is_crowded = inf, False
        for standing in (MET, NEW, SILENT):
            self._age(standing, now)

    def _age(self, standing: int, now: float) -> None:
        late, young, late_s = [], self._young[standing], _late_s(standing)
        for one, (since, room) in young.items():
            if since + late_s > now:
                self.ages_at = min(self.ages_at, since + late_s)
                break
            left = self._most_late - sum(self._late)
            if standing == SILENT:
                left = min(left, self._most_late // 2 - self._late[SILENT])
            if room <= left:
                self._holds[standing] -= 1
                self._late[standing] += room
                self._held[one] = self._late, standing, room
                late.append(one)
            else:
                self._is_crowded = True
        for one in late:
            del young[one]

    def left(self, most: int) -> tuple[int, int, int]:
        """How many more requests may have a place, by standing.

        Args:
            most: Places in all.
        """
        met, new, silent = self._holds
        free = most - met - new - silent
        strangers = min(free, max(most // 2, 1) - new - silent)
        return free, strangers, min(strangers, max(most // 4, 1) - silent)

    def part(self, most: int) -> float:
        """Share of the usual time for a stranger's first attempt, by the places and the room that are left."""
        if CROWDED * sum(self._late) > self._most_late:
            return 0.0
        return 1.0 / SHORT if self.left(most)[NEW] <= most // 8 else 1.0

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._held)

    def strangers(self) -> Iterator[Hashable]:
        return (one for one, (_, standing, _) in self._held.items() if standing != MET)


def _late_s(standing: int) -> float:
    return SILENT_LATE_S if standing == SILENT else LATE_S


class Stranger(Protocol):
    """The facts about a host that count here."""

    key: str
    domain: str
    standing: int


class Patience:
    """How long a request to a stranger may last, by earlier failures of its domain, addresses and networks.

    An attempt that ends early counts as failed like any other: the next one has more time.

    Args:
        addresses_of: The known addresses of a host, given by its key.
        part: Share of the usual time, as `Shares.part` says it.
    """

    def __init__(self, addresses_of: Callable[[str], Sequence[str]], part: Callable[[], float]) -> None:
        self._addresses_of = addresses_of
        self._part = part
        self._failures: OrderedDict[str, int] = OrderedDict()

    def within_s(self, host: Stranger, usual_s: float, attempt: int, *, is_last: bool) -> float | None:
        """Seconds for the whole answer; None for the usual time.

        Args:
            usual_s: That time.
            attempt: Attempts made before this one.
            is_last: Whether no attempt comes after it.
        """
        if host.standing == MET or is_last:
            return None
        part, steps = self._part(), self._steps(host)
        if part >= 1.0 and not steps:
            return None
        time_s = max(usual_s * part / 2.0 ** min(steps, 30), FLOOR_S) * AGAIN ** min(attempt, 30)
        return time_s if time_s < usual_s else None

    def heard(self, host: Stranger, answer: "Answer", *, is_page: bool) -> None:
        """A request to a host has ended: note its standing, and count or clear failures of its neighbours.

        Args:
            is_page: Whether it was for a page: many servers answer for robots.txt at once, and for pages never.
        """
        if answer.private or answer.by_proxy:
            return
        if answer.http is None or "timeout" in answer.error:
            host.standing = SILENT
            self._failed(host)
            return
        if host.standing != MET:
            host.standing = MET if is_page else NEW
            for name in self._names(host):
                self._failures.pop(name, None)

    def _failed(self, host: Stranger) -> None:
        for name in self._names(host):
            self._failures[name] = self._failures.pop(name, 0) + 1
        while len(self._failures) > REMEMBERED:
            self._failures.popitem(last=False)

    def _steps(self, host: Stranger) -> int:
        """How often the time is halved."""
        if not self._failures:
            return 0
        return max(self._failures.get(name, 0) // (OF_NETWORK if name[0] == "n" else 1) for name in self._names(host))

    def _names(self, host: Stranger) -> set[str]:
        """The names under which its failures are counted."""
        addresses = self._addresses_of(host.key)
        return {
            f"d {host.domain}",
            *(f"a {address}" for address in addresses),
            *(f"n {network}" for network in map(network_of, addresses)),
        }


def network_of(address: str) -> str:
    """The 256 addresses around an IPv4 address; of an IPv6 address, its first three groups (a site's /48)."""
    return ":".join(address.split(":")[:3]) if ":" in address else address.rpartition(".")[0]


def standing_of(row: "HostRow | None") -> int:
    """A host's standing by its row, after a restart."""
    if row is None:
        return NEW
    return SILENT if row.failures else MET


def by_partition(tasks: Iterator[Hashable]) -> Counter[int]:
    """Tasks counted by the partition of their hosts."""
    return Counter(task.host.partition.fold.partition for task in tasks)  # type: ignore[attr-defined]  # keys here are tasks
