"""Dones: the result of each attempt ends its URL's row, or moves it to the waiting ones. And changes of pages.

A done names its row, so it is found by one look-up. A done without a row changes nothing: a doubled one is harmless.
"""

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.requests import MAX_JAR_BYTES
from crawlog.streams.session import CookieJar, StoredCookie
from crawlog.streams.url import Place, Places

from . import again
from . import rows as r
from .host_queues import MAX_DUE_S, HostQueues, bounded_priority
from .jobs import JobState
from .overlay import Rows

MAX_OFFSET = 1 << 62  # Greatest offset of a page that counts

MAX_BYTES = 1 << 31  # Largest body that counts: any client may write a done, and the sums have to fit into a row

_NEVER_ASKED = r.HostRow(0.0, 0.0, 0)


class Dones:
    """What one partition does with the results of attempts.

    Args:
        partition: The partition of crawl.urls that is folded; its pages have the same number.
        places: Where URLs belong.
        rows: The state.
        queues: Hold the URLs that were fetched.

    Attributes:
        jars: The cookie jars.
    """

    def __init__(self, partition: int, places: Places, rows: Rows, queues: HostQueues) -> None:
        self._partition = partition
        self._places = places
        self._rows = rows
        self._queues = queues
        self.jars = JarRows(rows)

    def take(self, job: JobState, result: u.Result, epoch: int, timestamp_s: float) -> None:
        """Fold what became of one attempt; it counts only if its URL has a row."""
        if not _is_sound(result):
            job.counts.bad += 1
            return
        place = self._places.of(result.url)
        key, stored = self._standing(job, place.host_hash, result)
        if stored is None:
            return
        if epoch != job.epoch:
            if self._queues.listener is not None:
                self._queues.listener.outdated(key, epoch)
            return
        row = r.read_queued(stored)
        if not _concerns(result, row):
            return
        at = result.at or timestamp_s
        if result.cookies and not self.jars.take(job.number, place.domain_hash, result, at):
            job.counts.bad += 1
        if result.status == "began":
            self._queues.begin(job, place, key, row)
            return
        self._note_page(job, result)
        self._note_host(place.host_hash, result, at)
        self._queues.remove(job, place, key, row, result.row)
        self._settle(job, result, place, row, at)

    def take_change(self, job: JobState, change: u.PageChange, at: float) -> None:
        """Fold the digest of a page's items, before or after the page's done; that of an older page changes nothing."""
        if not _fits(change):
            job.counts.bad += 1
            return
        place = self._places.of(change.url)
        key, stored = self._standing(job, place.host_hash, change)
        row = r.read_queued(stored) if stored is not None else None
        if row is None or row.again is None or row.url != change.url or change.page < row.again.page:
            return
        known, changed = row.again, again.after_change(job.spec.recrawl, row.again, change)
        row = msgspec.structs.replace(row, again=changed)
        if changed.every_s != known.every_s and again.is_regular(row, known, at):
            self._queues.due_after(job, place, row, change.row, changed.every_s)
        else:
            self._queues.put(job, place, key, row)

    def awaiting(self, job: JobState, result: u.Result) -> r.QueueRow | None:
        """The row that a done of the job's epoch would end; None if the done would change nothing."""
        if not _is_sound(result):
            return None
        _, stored = self._standing(job, self._places.of(result.url).host_hash, result)
        row = r.read_queued(stored) if stored is not None else None
        return row if row is not None and _concerns(result, row) else None

    def _standing(self, job: JobState, host: int, result: u.Result | u.PageChange) -> tuple[bytes, bytes | None]:
        """The row that a done or a change names: queued or waiting."""
        key = r.queue_key(job.number, host, bounded_priority(result.priority), result.row, job.lifo)
        stored = self._rows.get(key)
        if stored is not None:
            return key, stored
        key = r.wait_key(job.number, host, result.row)
        return key, self._rows.get(key)

    def _note_page(self, job: JobState, result: u.Result) -> None:
        """Count an offset that comes twice: pages of one partition are done in order, so it was given out again."""
        partition, offset = result.page or (-1, -1)
        if partition == self._partition and 0 <= offset < MAX_OFFSET:
            counts = job.counts
            counts.page_back += offset < counts.page_end
            counts.page_end = max(counts.page_end, offset + 1)
            job.dirty = True

    def _settle(self, job: JobState, result: u.Result, place: Place, row: r.QueueRow, at: float) -> None:
        """Decide whether a URL waits for its next attempt, is fetched again from a lesser depth, or is final."""
        if result.status == "failed" and result.next_at > 0:
            self._queues.wait(job, place, row, result)
        elif result.depth > row.depth:
            self._queues.add_again(job, place, row, result.row)
        else:
            job.count_final(result.status, 1)
            job.count_answer(result.http, result.why_no_page, 1)
            job.counts.bytes += min(max(result.bytes, 0), MAX_BYTES)
            if not row.is_again:
                self._queues.count(job, place.host_hash, place, -1)
            due = again.after_done(job.spec.recrawl, row, result, at)
            job.counts.again += (due is not None) - row.is_again
            if due is not None:
                self._queues.keep_again(job, place, row, result.row, due, due.every_s)

    def _note_host(self, host: int, result: u.Result, at: float) -> None:
        """Keep what politeness must know of a host after a restart; a done without a request tells nothing."""
        is_unasked = result.status == "failed" and result.http is None and result.host_wait_s <= 0
        if result.status == "refused" or is_unasked:
            return
        key = r.host_key(host)
        stored = self._rows.get(key)
        before = r.read_host(stored) if stored else _NEVER_ASKED
        # Several requests may be in flight: a good answer does not end the rest that another answer asked for.
        left_s = min(before.last_at + before.wait_s - at, before.wait_s)
        wait_s = min(max(result.host_wait_s, left_s, 0.0), MAX_DUE_S)
        failures = before.failures + 1 if result.host_wait_s > 0 else 0
        self._rows.put(key, r.pack(r.HostRow(at, wait_s, failures)))


def _fits(change: u.PageChange) -> bool:
    """Whether a row can hold the numbers of a change."""
    numbers = (change.page, *(change.item or ()))
    return _is_sound(change) and 0 <= change.digest < 1 << 64 and all(0 <= number < MAX_OFFSET for number in numbers)


def _is_sound(result: u.Result | u.PageChange) -> bool:
    return 0 <= result.row < 1 << 64 and result.url.startswith(("http://", "https://"))


def _concerns(result: u.Result, row: r.QueueRow) -> bool:
    """Whether a done is of a row's URL and, unless it is final for any attempt, of its next attempt."""
    is_next = result.attempt == row.attempt + 1
    return row.url == result.url and (is_next or result.status not in ("failed", "began"))


# The cookie jars of one partition: a row for each (job, registrable domain, name).


class JarRows:
    """Reads and changes the rows of jars.

    Attributes:
        mark: Identity of this state, for those who keep what they read.
    """

    def __init__(self, rows: Rows) -> None:
        self.mark = object()
        self._rows = rows

    def read(self, job: int, domain: int, name: str) -> tuple[StoredCookie, ...]:
        """The cookies of a jar; `domain` is a hash."""
        stored = self._rows.get(r.jar_key(job, domain, name))
        return r.read_jar(stored).cookies if stored else ()

    def take(self, job: int, domain: int, result: u.Result, at: float) -> bool:
        """Take the changes that a done names; False if its jar has no name that a key can hold."""
        if len(result.jar.encode()) > MAX_JAR_BYTES:
            return False
        key = r.jar_key(job, domain, result.jar)
        jar = CookieJar(self.read(job, domain, result.jar))
        jar.apply(result.cookies, at)
        if cookies := jar.stored():
            self._rows.put(key, r.pack(r.JarRow(cookies)))
        else:
            self._rows.delete(key)
        return True
