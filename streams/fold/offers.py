"""Found URLs: each one is queued, dropped by a rule, or known.

    canonical URL, place → forwarded │ parked (job unknown) │ offered: scope → known? → budget → traps → queued, marked

Only a URL that is queued is marked in the seen table, so one that a rule drops may come in later by another way.
"""

from collections.abc import Collection

import msgspec

from crawlog.schemas import urls as u
from crawlog.streams.url import Canonicaliser, InvalidUrl, Place, Places, fingerprint, scope_name

from . import again
from . import rows as r
from .fingerprints import Domain
from .host_queues import HostQueues, bounded_priority
from .jobs import JobState
from .overlay import Rows
from .revisions import NO_EFFECTS, Effects
from .seen import SeenTable
from .traps import MORE_PER_URLS, Traps, session_twin

_HOSTS_CACHED = 65_536

# Greatest depth and number of hops that a found may have: rows do not hold every integer that JSON can.
MAX_DEPTH = (1 << 31) - 1

MANY = 8  # With at least so many URLs in a record, their rows are read together

Placed = tuple[str, Place, int]  # A found URL: canonical, where it belongs, and its fingerprint

_depth_row = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
_default_canonical = Canonicaliser(u.CanonicalRules()).canonical


class Offers:
    """What one partition does with found URLs.

    Args:
        partition: The partition of crawl.urls that is folded.
        places: Where URLs belong.
        rows: The state; `flush` completes it.
        queues: Take the URLs that are to be fetched.
        cached: Pages of the seen table held in memory.
    """

    def __init__(self, partition: int, places: Places, rows: Rows, queues: HostQueues, cached: int) -> None:
        self.seen = SeenTable(rows, cached, places.partitions)
        self.traps = Traps(rows, cached)
        self._partition = partition
        self._places = places
        self._rows = rows
        self._queues = queues
        self._parked = sum(1 for _ in rows.scan(b"p"))

    def take(self, job: JobState | None, record: u.UrlsRecord, offset: int) -> Effects:
        """Fold a record of found URLs; those of a job that is not known yet are parked."""
        assert record.urls is not None
        effects = NO_EFFECTS
        if job is not None:
            job.count_record()
            job.count_unsent(record)
        places = [
            self.place(job, found) if not index >> r.SEQUENCE_INDEX_BITS and _makes_sense(found) else None
            for index, found in enumerate(record.urls)
        ]
        ahead = self._read_ahead(job, places)
        for index, (found, placed) in enumerate(zip(record.urls, places, strict=True)):
            sequence = (offset << r.SEQUENCE_INDEX_BITS) + index
            if placed is None:
                if job is not None:
                    job.counts.bad += 1
            elif placed[1].partition != self._partition:
                effects = _misplaced(effects, record, found, placed[1].partition)
            elif job is None:
                assert record.job is not None
                parked = msgspec.structs.replace(found, priority=bounded_priority(found.priority))
                self._rows.put(r.parked_key(sequence, record.job), r.pack(parked))
                self._parked += 1
            else:
                self.offer(job, found, placed, sequence, record.at)
        for key in ahead:
            self._rows.let_go(key)
        return effects

    def unpark(self, job: JobState) -> None:
        """Offer the URLs that were found for a job before its record came."""
        if not self._parked:
            return
        for key, value in list(self._rows.scan(b"p")):
            if key[9:] == job.name.encode():
                self._rows.delete(key)
                self._parked -= 1
                found = r.read_parked(value)
                self.offer(job, found, self.place(job, found), int.from_bytes(key[1:9], "big"))

    def drop_parked(self, job: str) -> None:
        if not self._parked:
            return
        for key, _ in list(self._rows.scan(b"p")):
            if key[9:] == job.encode():
                self._rows.delete(key)
                self._parked -= 1

    def flush(self) -> None:
        """Write into the rows what is held beside them."""
        self.seen.flush()
        self.traps.flush()

    def forget(self, job: JobState) -> None:
        """Remove a job from memory: its rows were dropped."""
        self.seen.forget(job.number)
        self.traps.forget(job.number)

    def place(self, job: JobState | None, found: u.FoundUrl) -> Placed | None:
        """The canonical URL and where it belongs; None when it is no http(s) URL."""
        try:
            url = (job.canonical if job is not None else _default_canonical)(found.url)
            return url, self._places.of(url), found.id or fingerprint(url)
        except InvalidUrl:
            return None

    # ------------------------------------------------------------------ reading ahead

    def _read_ahead(self, job: JobState | None, places: list[Placed | None]) -> list[bytes]:
        """Read the rows that the URLs of a record need together, and return their keys."""
        if job is None or len(places) < MANY:
            return []
        mine = [p for p in places if p is not None and p[1].partition == self._partition]
        by_host = {place.host_hash: place for _, place, _ in mine}
        ahead = self._rows.read_ahead(self._keys_of_places(job, by_host.values()))
        if job.keeps_places:
            known = [(place, mark) for _, place, mark in mine if self._knows(job, place, mark)]
            ahead += self._rows.read_ahead([_depth_key(job, place, mark) for place, mark in known])
        return ahead

    def _keys_of_places(self, job: JobState, places: Collection[Place]) -> list[bytes]:
        """Keys of the rows of hosts, domains and names that are not in memory."""
        hosts = [r.host_queue_key(job.number, place.host_hash) for place in places]
        keys = [key for key in hosts if key not in self._queues.held]
        if len(keys) < MANY:
            return []
        domains = {place.domain_hash for place in places}
        keys += [
            r.domain_key(job.number, job.since, domain)
            for domain in domains
            if not self.seen.holds(job.number, job.since, domain)
        ]
        if job.spec.scope.kind != "any":
            names = {scope_name(job.spec.scope.kind, place) for place in places}
            keys += [r.joined_key(job.number, name) for name in names - job.scope.names]
        return keys

    # ------------------------------------------------------------------ one URL

    def offer(  # a found, where it belongs, and when it was made
        self, job: JobState, found: u.FoundUrl, placed: Placed | None, sequence: int, at: float = 0.0
    ) -> None:
        """Queue a URL and mark it seen, unless a rule drops it or the job knows it."""
        if placed is None:
            job.counts.bad += 1
            return
        url, place, mark = placed
        if found.source == "seed" or found.joins:
            job.join(place)
        rule = job.scope.refusal(url, place, found.depth, found.hops, job.joined)
        if rule is not None:
            job.count_dropped(rule)
            return
        if self._knows(job, place, mark):
            self._offer_known(job, found, placed, sequence, at)
            return
        rule = self._refusal_of_new(job, found, url, place)
        if rule is not None:
            job.count_dropped(rule)
            return
        self._mark(job, place, mark)
        self._note_depth(job, place, mark, (found.depth, bounded_priority(found.priority), sequence))
        self._queues.add(job, found, url, place, sequence)

    def _offer_known(self, job: JobState, found: u.FoundUrl, placed: Placed, sequence: int, at: float) -> None:
        """Queue a known URL again if its done no longer counts, or if it was found at a lesser depth."""
        url, place, _ = placed
        was = found.again
        if was is None and found.checked and self._is_first_check(job, url, place):
            was = "redirected"
        if was is not None:
            self._queue_again(job, found, was, placed, sequence)
        elif not self._found_nearer(job, found, placed, sequence):
            job.counts.seen += 1
            if job.spec.recrawl.age is not None:
                self._look_again(job, found, placed, at)

    def _refusal_of_new(self, job: JobState, found: u.FoundUrl, url: str, place: Place) -> str | None:
        """The rule that refuses a URL the job does not know: the budget of its domain, or a trap."""
        budget = job.spec.max_pages_per_domain
        if budget is not None and self._queued_in(job, place) >= budget:
            return "domain_budget"
        if found.source == "seed" or found.joins:
            return None
        return self._trap(job, found, url, place)

    def _trap(self, job: JobState, found: u.FoundUrl, url: str, place: Place) -> str | None:
        """The trap rule that refuses a new URL that was not given as a seed."""
        rules = job.spec.traps
        twin = session_twin(url) if rules.sessions and found.source != "redirect" else None
        if twin is not None and any(self._knows(job, place, fingerprint(name)) for name in twin):
            return "trap_session"
        is_host_new = self._is_new_host(job, place)
        if is_host_new and self._has_hosts(job, place):
            return "trap_hosts"
        # A sitemap is finite, and its URLs are meant to be fetched.
        rule = self.traps.suspicion(job.number, rules, found, url, place) if found.source != "sitemap" else None
        if rule is not None and not self.traps.may_stray(
            job.number, rules, rule, url, place, self._queued_in(job, place)
        ):
            return rule
        if twin is not None:
            self._mark_name(job, place, fingerprint(twin[1]))
        if is_host_new:
            self.traps.one_host_more(job.number, place.domain_hash)
        return None

    def _is_new_host(self, job: JobState, place: Place) -> bool:
        """Whether a host other than the domain itself has had no queue yet."""
        host, domain = place.host, place.domain
        if host in job.hosts or host in (f"http://{domain}:80", f"https://{domain}:443"):
            return False
        key = r.host_queue_key(job.number, place.host_hash)
        is_new = key not in self._queues.held and self._rows.get(key) is None
        if not is_new:
            if len(job.hosts) >= _HOSTS_CACHED:
                job.hosts.clear()
            job.hosts.add(host)
        return is_new

    def _has_hosts(self, job: JobState, place: Place) -> bool:
        limit = job.spec.traps.hosts
        if limit is None:
            return False
        most = limit + self._queued_in(job, place) // MORE_PER_URLS
        return self.traps.hosts(job.number, place.domain_hash) >= most

    def _queue_again(self, job: JobState, found: u.FoundUrl, was: u.Status, placed: Placed, sequence: int) -> None:
        """Queue a URL whose done no longer counts; that done has removed its old row."""
        url, place, mark = placed
        job.count_final(was, -1)
        job.count_answer(found.again_http, found.again_why, -1)
        job.counts.seen += 1
        job.counts.page_end = job.counts.page_back = 0
        known = _recurring(self._rows, self._queues, job, placed)
        if known is not None:
            row, old_sequence = known
            self._queues.take_again(job, place, row, old_sequence)
        self._note_depth(job, place, mark, (found.depth, bounded_priority(found.priority), sequence))
        self._queues.add(job, found, url, place, sequence, known[0].again if known is not None else None)

    def _look_again(self, job: JobState, found: u.FoundUrl, placed: Placed, at: float) -> None:
        """Let a URL that is done be due earlier or later, if its found asks for that."""
        has_wish = found.itag or found.lastmod > 0 or found.age > 0
        known = _recurring(self._rows, self._queues, job, placed) if has_wish else None
        if known is not None:
            row, sequence = known
            assert row.again is not None
            if (later := again.after_found(job.spec.recrawl, row, row.again, found, at)) is not None:
                row = msgspec.structs.replace(row, again=later[0])
                self._queues.due_after(job, placed[1], row, sequence, later[1])

    def _found_nearer(self, job: JobState, found: u.FoundUrl, placed: Placed, sequence: int) -> bool:
        """Whether a known URL of a depth-limited job was found at a lesser depth; it is then fetched with that depth.

        A row that is still queued gets the new depth. A fetch in flight then ends with a greater depth than its row
        has, so the row is kept. A URL that is done is queued again.
        """
        if job.spec.max_depth is None:
            return False
        url, place, mark = placed
        known = self._rows.get(_depth_key(job, place, mark))
        if known is None:
            return False
        depth, priority, old_sequence = _depth_row(known)
        if found.depth >= depth:
            return False
        if (again_row := self._queues.waiting_again(job, place, old_sequence)) is not None:
            nearer = msgspec.structs.replace(again_row, depth=found.depth)
            self._note_depth(job, place, mark, (found.depth, priority, old_sequence))
            self._queues.due_after(job, place, nearer, old_sequence, 0.0)
            return True
        if self._queues.lower(job, place, priority, old_sequence, found.depth):
            self._note_depth(job, place, mark, (found.depth, priority, old_sequence))
            return True
        self._note_depth(job, place, mark, (found.depth, bounded_priority(found.priority), sequence))
        self._queues.add(job, found, url, place, sequence)
        return True

    # ------------------------------------------------------------------ the seen table

    def _knows(self, job: JobState, place: Place, mark: int) -> bool:
        return self.seen.knows(job.number, job.since, place.domain_hash, mark, job.dedup_error)

    def _mark(self, job: JobState, place: Place, mark: int) -> None:
        self.seen.insert(job.number, job.since, place.domain_hash, mark, job.dedup_error)

    def _mark_name(self, job: JobState, place: Place, mark: int) -> None:
        """Mark a name that is not a URL: it has no depth, and no budget counts it."""
        self._mark(job, place, mark)
        self._domain(job, place).queued -= 1

    def _is_first_check(self, job: JobState, url: str, place: Place) -> bool:
        """Whether this is the first time that a check for cookies led back to a URL; it is noted."""
        mark = fingerprint(f"{url}\tchecked")
        if self._knows(job, place, mark):
            return False
        self._mark_name(job, place, mark)
        return True

    def _queued_in(self, job: JobState, place: Place) -> int:
        """URLs of a domain that were ever queued."""
        return self._domain(job, place).queued

    def _domain(self, job: JobState, place: Place) -> Domain:
        return self.seen.domain(job.number, job.since, place.domain_hash, job.dedup_error)

    def _note_depth(self, job: JobState, place: Place, mark: int, row: tuple[int, int, int]) -> None:
        """Keep the depth and the queue row of a URL, in a depth-limited exact job."""
        if job.keeps_places:
            self._rows.put(_depth_key(job, place, mark), r.pack(row))


def _makes_sense(found: u.FoundUrl) -> bool:
    is_short = len(found.url) <= u.MAX_URL_BYTES and len(found.via) <= u.MAX_VIA_BYTES
    return is_short and 0 <= found.depth <= MAX_DEPTH and 0 <= found.hops <= MAX_DEPTH


def _depth_key(job: JobState, place: Place, mark: int) -> bytes:
    return r.depth_key(job.number, job.since, place.domain_hash, mark)


def _recurring(rows: Rows, queues: HostQueues, job: JobState, placed: Placed) -> tuple[r.QueueRow, int] | None:
    """The row of a known URL that is due again later, and its sequence; None if it is none such, or not known."""
    if job.spec.recrawl.age is None or not job.keeps_places:
        return None
    _, place, mark = placed
    stored = rows.get(_depth_key(job, place, mark))
    if stored is None:
        return None
    sequence = _depth_row(stored)[2]
    row = queues.waiting_again(job, place, sequence)
    return (row, sequence) if row is not None else None


def _misplaced(effects: Effects, record: u.UrlsRecord, found: u.FoundUrl, partition: int) -> Effects:
    """The effects, with a URL that belongs to another partition added."""
    if effects is NO_EFFECTS:
        effects = Effects()
    if record.fwd:
        effects.dead.append(f"forwarded already, and {found.url} belongs to partition {partition}")
        return effects
    forward = effects.forward.get(partition)
    if forward is None:
        forward = effects.forward[partition] = type(record)(
            job=record.job, epoch=record.epoch, at=record.at, fwd=record.fwd + 1, urls=[]
        )
    assert forward.urls is not None
    forward.urls.append(found)
    return effects
