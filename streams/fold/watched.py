"""A fold that is watched at one URL: what it does with each found and each done of it.

A verdict is read off the job's counts and off what the fold tells its listener, so no rule is written twice.
"""

import re
from collections import Counter, deque

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.progress import JobCounts
from crawlog.streams.url import Canonicaliser, Places, serialise

from . import rows as r
from .dones import Dones
from .fold import Fold
from .jobs import JobState
from .offers import Offers, Placed
from .overlay import Rows

MAX_LAST_HOPS = 30  # Pages that are remembered as the last of a chain of redirects; each is read by itself


class _Told:
    """What the fold told its listener since `clear`."""

    def __init__(self) -> None:
        self.heard: set[str] = set()
        self.rows: dict[bytes, r.QueueRow] = {}
        self.forgot: list[int] = []
        self.changed: list[int] = []

    def clear(self) -> None:
        """Forget what was told of founds and dones."""
        self.heard = set()
        self.rows = {}

    def queued(self, job: int, host: str, domain: str, key: bytes, value: bytes) -> None:  # noqa: ARG002  # as `Listener` has it
        self.heard.add("queued")
        self.rows[key] = r.read_queued(value)

    def lowered(self, job: int, host: str, key: bytes, value: bytes) -> None:
        """Nothing to note: the row has the new depth."""

    def removed(self, job: int, host: str, key: bytes) -> None:  # noqa: ARG002  # as `Listener` has it
        self.heard.add("removed")

    def waiting(self, job: int, host: str, domain: str, key: bytes, row: r.QueueRow) -> None:  # noqa: ARG002  # as `Listener` has it
        self.heard.add("waiting")
        self.rows[key] = row

    def outdated(self, key: bytes, epoch: int) -> None:  # noqa: ARG002  # as `Listener` has it
        self.heard.add("outdated")

    def job_changed(self, job: int) -> None:
        self.changed.append(job)

    def forgotten(self, job: int) -> None:
        self.forgot.append(job)


class WatchedFold(Fold):
    """A fold that tells what became of the founds and dones of one URL.

    Args:
        given: The URL as the user gave it; each job has its own canonical form of it.

    Attributes:
        met: Founds of the URL that were placed but not offered: their job is not known yet.
        verdicts: Of each found that was offered: its job, what became of it, and the rule that dropped it.
        results: Of each done: its job and epoch, and what it did to the URL's row.
        children: URLs of the partition that were found on the URL's page, each as often as it was sent.
        last_hops: The newest pages that redirect after as many redirects in a row as their job follows.
    """

    def __init__(
        self, given: str, partition: int, places: Places, rows: Rows, skipped: tuple[r.Skip, ...] = ()
    ) -> None:
        super().__init__(partition, places, rows, skipped=skipped)
        self._given = given
        self._wanted: dict[tuple[str, int], str] = {}
        self._keys: dict[str, bytes] = {}
        self.home = places.of(serialise(given)).domain
        self.met: list[u.FoundUrl] = []
        self.verdicts: list[tuple[JobState, u.FoundUrl, str, str]] = []
        self.results: list[tuple[JobState, u.Result, int, str]] = []
        self.children = 0
        self.deepest: Counter[tuple[str, int]] = Counter()
        self.last_hops: deque[tuple[int, int]] = deque(maxlen=MAX_LAST_HOPS)
        self.told = _Told()
        self.listener = self.told
        self.offers = _WatchedOffers(self, places)
        self.dones = _WatchedDones(self, places)

    def wanted(self, job: JobState | None) -> str:
        """The URL as this job spells it."""
        key = (job.name, job.spec.rev) if job is not None else ("", 0)
        url = self._wanted.get(key)
        if url is None:
            canonical = job.canonical if job is not None else _default
            url = self._wanted[key] = canonical(self._given)
        return url

    def pages_at_limit(self, job: JobState) -> int:
        """Pages that were fetched in the job's epoch at the depth limit: their links are dropped."""
        return self.deepest[job.name, job.epoch]

    def note_key(self, job: JobState) -> None:
        """Remember the URL's row, as far as it was told."""
        for key in self.told.rows:
            self._keys[job.name] = key

    def standing(self, job: JobState) -> tuple[bytes, r.QueueRow] | None:
        """The kind and the value of the URL's row, if it has one."""
        key = self._keys.get(job.name)
        stored = self.rows.get(key) if key is not None else None
        return None if key is None or stored is None else (key[:1], r.read_queued(stored))


class _WatchedOffers(Offers):
    def __init__(self, watch: WatchedFold, places: Places) -> None:
        super().__init__(watch.partition, places, watch.rows, watch.queues, watch.seen.cached)
        self._watch = watch

    def place(self, job: JobState | None, found: u.FoundUrl) -> Placed | None:
        placed = super().place(job, found)
        wanted = self._watch.wanted(job)
        if found.parent == wanted:
            self._watch.children += 1
        if placed is not None and placed[0] == wanted:
            self._watch.met.append(found)
        return placed

    def offer(  # as the base class has it
        self, job: JobState, found: u.FoundUrl, placed: Placed | None, sequence: int, at: float = 0.0
    ) -> None:
        watch = self._watch
        if placed is None or placed[0] != watch.wanted(job):
            super().offer(job, found, placed, sequence, at)
            return
        watch.met = [one for one in watch.met if one is not found]
        before = msgspec.structs.replace(job.counts, dropped=dict(job.counts.dropped))
        watch.told.clear()
        super().offer(job, found, placed, sequence, at)
        watch.note_key(job)
        verdict, reason = _verdict(before, job.counts, watch.told.heard)
        watch.verdicts.append((job, found, verdict, reason))


class _WatchedDones(Dones):
    def __init__(self, watch: WatchedFold, places: Places) -> None:
        super().__init__(watch.partition, places, watch.rows, watch.queues)
        self._watch = watch

    def take(self, job: JobState, result: u.Result, epoch: int, timestamp_s: float) -> None:
        watch = self._watch
        if result.depth == job.spec.max_depth and result.status in ("fetched", "not_modified"):
            watch.deepest[job.name, epoch] += self._places.of(result.url).domain == watch.home
        if result.status == "redirected" and result.page is not None and epoch == job.epoch:
            row = self.awaiting(job, result)
            if row is not None and row.hops >= job.spec.max_redirects:
                watch.last_hops.append(result.page)
        if result.url != watch.wanted(job):
            super().take(job, result, epoch, timestamp_s)
            return
        watch.told.clear()
        super().take(job, result, epoch, timestamp_s)
        watch.note_key(job)
        standing = watch.standing(job)
        has_begun = result.status == "began" and epoch == job.epoch and standing is not None and standing[1].began
        watch.results.append((job, result, epoch, "began" if has_begun else _effect(watch.told.heard)))


_default = Canonicaliser(u.CanonicalRules()).canonical


def _verdict(before: JobCounts, after: JobCounts, heard: set[str]) -> tuple[str, str]:
    """The verdict of an offer and the rule that dropped it, from the change of the job's counts."""
    rule = next((name for name, count in after.dropped.items() if count != before.dropped.get(name, 0)), "")
    if rule:
        return "dropped", rule
    if after.seen != before.seen and "queued" not in heard:
        return "known", ""
    return ("nearer" if heard.isdisjoint(("queued", "waiting")) else "queued"), ""


def _effect(heard: set[str]) -> str:
    """The effect of a done on the URL's row."""
    if "outdated" in heard:
        return "outdated"
    if "removed" not in heard:
        return "ignored"
    if "waiting" in heard:
        return "retry"
    return "again" if "queued" in heard else "final"


# Finds the records of a log that may concern one registrable domain by their bytes, before decoding.

_OTHER_HOST = re.compile(rb'//[^/"?#]*%')  # A host with an escape in it, which may spell any name

# A host that WHATWG may read as an IPv4 address.
_OTHER_IP = re.compile(
    rb'//(?:[^/"?#]*@)?(?!(?:(?:0|[1-9]\d{0,2})\.){3}(?:0|[1-9]\d{0,2})[:/"?#])\d[0-9a-fx.]*[:/"?#]', re.IGNORECASE
)


_IPV6 = re.compile(rb'//(?:[^/"?#]*@)?\[')  # An IPv6 address, in whatever form

_OF_JOBS = re.compile(rb'"(?:spec|rewind|order)"')  # Records that change jobs, whatever their domain


class DomainPrefilter:
    """Tells by its bytes whether a record may concern a domain.

    A canonical URL contains its domain unchanged. A record that may spell the domain in another way (another script, an
    escape in the host or in the JSON, another form of an IP address) is decoded.
    """

    def __init__(self, domain: str) -> None:
        self._domain = domain.encode()
        is_ipv4 = domain.rpartition(".")[2].isdigit()
        self._odd = _IPV6 if domain.startswith("[") else _OTHER_IP if is_ipv4 else _OTHER_HOST

    def may_concern(self, value: bytes | None) -> bool:
        """False only if the value has no URL of the domain and is no job record, order or epoch record."""
        if not value:
            return False
        if self._domain in value or not value.isascii() or b"\\" in value or _OF_JOBS.search(value) is not None:
            return True
        return self._domain in value.lower() or self._odd.search(value) is not None
