"""A fold over rows in memory, records for it, and whole logs made by a seed."""

import random
from typing import Any

from crawlog.schemas import urls as u
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.fold import Fold
from crawlog.streams.fold.overlay import InMemory, Rows, digest
from crawlog.streams.fold.revisions import Effects
from crawlog.streams.url.place import Places

PLACES = Places(1)


AT = 1_700_000_000.0


ANY = u.JobSpec(scope=u.ScopeSpec(kind="any"))


def spec(**changes: Any) -> u.JobSpec:
    """A job without a scope, but for these changes."""
    return u.JobSpec(**{"scope": ANY.scope, **changes})


def job(name: str = "j", epoch: int = 0, **changes: Any) -> bytes:
    """A job record."""
    return u.encode(u.UrlsRecord(job=name, epoch=epoch, spec=spec(**changes)))


def found(*urls: str, job: str | None = "j", fwd: int = 0, **fields: Any) -> bytes:
    """A found of URLs that share their other fields."""
    return u.encode(u.UrlsRecord(job=job, fwd=fwd, urls=[u.FoundUrl(url, **fields) for url in urls]))


def done(
    url: str, row: int, status: u.AttemptStatus = "fetched", job: str = "j", epoch: int = 0, **fields: Any
) -> bytes:
    """A done of one URL."""
    return u.encode(u.UrlsRecord(job=job, epoch=epoch, results=[u.Result(url, row, status, **fields)]))


class State:
    """A fold over memory, and the log's end."""

    def __init__(self, *values: bytes, places: Places = PLACES, partition: int = 0) -> None:
        self.base = InMemory()
        self.places = places
        self.partition = partition
        self.offset = 0
        self.open()
        self.take(*values)

    def open(self, skipped: tuple[r.Skip, ...] = ()) -> None:
        """Open what was checkpointed last."""
        self.rows = Rows(self.base)
        self.fold = Fold(self.partition, self.places, self.rows, cached_pages=2, skipped=skipped)

    def checkpoint(self) -> None:
        """Write all changes."""
        self.fold.flush()
        self.base.write(self.rows.taken())

    def take(self, *values: bytes | None) -> list[Effects]:
        """Fold records as the log's next ones."""
        effects = []
        for value in values:
            effects.append(self.fold.take(value, self.offset, AT))
            self.offset += 1
        return effects

    def digest(self) -> str:
        """Digest of all rows."""
        self.checkpoint()
        return digest(self.base.scan(b""))

    def queued(self, kind: bytes = b"q") -> list[r.QueueRow]:
        """Rows of one kind, in key order."""
        return [r.read_queued(value) for _, value in self.rows.scan(kind)]

    def urls(self) -> list[str]:
        """URLs to fetch, in key order."""
        return [row.url for row in self.queued()]

    @property
    def counts(self) -> Any:
        """Counts of job j."""
        return self.fold.jobs["j"].counts


def sequence(offset: int, index: int = 0) -> int:
    """The sequence of a found URL."""
    return (offset << 16) + index


A, B, C = "http://a.com/", "http://b.com/x", "https://c.org/?q=1"


def crawl(seed: int, records: int = 60) -> list[bytes]:
    """A log as workers and others may write it: jobs, founds, dones in and out of time, parked and misplaced ones."""
    draw = random.Random(seed)
    urls = [f"http://{host}.com/{page}" for host in "abc" for page in range(5)]
    recrawl = u.RecrawlRules(draw.choice([None, 30.0]), adaptive=draw.random() < 0.5)
    log = [job(max_depth=4, max_pages_per_domain=12, recrawl=recrawl)] if draw.random() < 0.8 else []
    for _ in range(records):
        name = draw.choice(["j", "j", "j", "k", None])
        kind = draw.random()
        if kind < 0.45:
            some = draw.sample(urls, 3)
            timed: dict[str, Any] = {
                "eta": draw.choice([0, 0, AT + 50]),
                "expires": draw.choice([0, 0, AT + 90]),
                "age": draw.choice([0, 9]),
            }
            timed |= {"itag": draw.choice(["", "1", "2"]), "lastmod": draw.choice([0, AT + 5])}
            timed["again"] = draw.choice([None, None, None, "fetched"])
            log.append(found(*some, job=name, depth=draw.randrange(6), priority=draw.choice([0, 0, 5, 200]), **timed))
        elif kind < 0.9:
            fields: dict[str, Any] = {
                "attempt": draw.randrange(1, 4),
                "depth": draw.randrange(5),
                "host_wait_s": draw.choice([0, 9]),
            }
            if draw.random() < 0.4:
                fields |= {"next_at": AT + draw.randrange(100), "delay_s": 7.0}
            row = sequence(draw.randrange(len(log) + 1), draw.randrange(3))
            status: u.AttemptStatus = draw.choice(["fetched", "failed", "failed", "refused", "redirected", "began"])
            if draw.random() < 0.3:
                cookie = u.CookieChange(draw.choice("ab"), str(draw.randrange(9)), gone=draw.random() < 0.3)
                fields |= {"jar": draw.choice(["", "x"]), "cookies": (cookie,)}
            log.append(done(draw.choice(urls), row, status, job=name or "default", **fields))
        elif kind < 0.93:
            numbers = (sequence(draw.randrange(len(log) + 1), draw.randrange(3)), draw.randrange(9), draw.randrange(3))
            parsed = u.PageChange(draw.choice(urls), *numbers, draw.choice([None, (0, draw.randrange(9))]))
            log.append(u.encode(u.UrlsRecord(name or "default", changes=[parsed])))
        else:
            log.append(
                job(
                    draw.choice(["j", "k"]),
                    rev=draw.randrange(1, 5),
                    max_depth=draw.choice([3, None]),
                    order=draw.choice(["fifo", "lifo"]),
                    recrawl=u.RecrawlRules(draw.choice([None, 30.0])),
                )
            )
    return log


def true_dones(log: list[bytes]) -> list[bytes]:
    """The log with dones aimed at what is queued at that point, so that most of them count."""
    state = State()
    aimed = []
    for at, value in enumerate(log):
        chosen = value
        record = u.decode(value)
        rows = list(state.rows.scan(b"q")) + list(state.rows.scan(b"w"))
        if record.results and rows:
            key, stored = rows[at % len(rows)]
            row = r.read_queued(stored)
            target = state.fold.numbers[int.from_bytes(key[1:5], "big")]
            number = int.from_bytes(key[-8:], "big")
            number = (1 << 64) - 1 - number if key[:1] == b"q" and target.lifo else number
            old = record.results[0]
            chosen = done(
                row.url,
                number,
                old.status,
                target.name,
                target.epoch,
                priority=row.priority,
                attempt=row.attempt + 1,
                depth=old.depth,
                next_at=old.next_at,
                delay_s=old.delay_s,
                host_wait_s=old.host_wait_s,
                jar=old.jar,
                cookies=old.cookies,
            )
        aimed.append(chosen)
        state.take(chosen)
    return aimed
