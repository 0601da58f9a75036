"""A host in memory, its queues, and the tasks that the dispatcher hands out of them.

A queue may hold a million URLs. Memory holds its window: the next ones, as they stand in the state's rows.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from crawlog.schemas.requests import unpacked
from crawlog.streams.fold import Fold, JobState
from crawlog.streams.fold import rows as r
from crawlog.streams.jobs import FREE
from crawlog.streams.url import hashed

from .politeness import crawl_delay_s
from .unmet_hosts import NEW

if TYPE_CHECKING:
    from crawlog.schemas.requests import RequestRecord
    from crawlog.streams.exits import Exit
    from crawlog.streams.requests import RequestPolicy
    from crawlog.streams.robots import RobotsRules

WINDOW = 30  # URLs of one host queue in memory, at most

ROW_BYTES = 150  # Mean memory of a URL in a window, at most: a window of longer URLs holds fewer

# A longer row, such as one with a request, is read again when its turn comes: a window holds its key alone.
LONG_ROW = 512

_OBJECT_BYTES = 57  # Memory of a row in a window beside its bytes: an object's head, and its place in the list

# Number of length classes of long queues, which come first where places run out: more than a window, 16 URLs to a
# window, 8 to 15.
LENGTHS = 3

_LAST = (1 << 64) - 1
_KEY = r.QUEUE_KEY_BYTES - r.QUEUE_PREFIX_BYTES

NEVER = float("-inf")  # Before any time

IDLE, LATER, READY = range(3)  # Where a host is: in no list, among those that rest, in line


class Cache(Protocol):
    """Values that may be lost, such as robots rules, kept beside the rows."""

    def cache(self, key: bytes, value: bytes) -> None:
        """Remember a value."""

    def remember(self, key: bytes, value: bytes) -> None:
        """Remember a value; it may be written later."""

    def cached(self, key: bytes) -> bytes | None:
        """A remembered value, or None."""


class HostPartition(Cache, Protocol):
    """The partition of a host, for code that has only the host or one of its tasks."""

    @property
    def fold(self) -> Fold:
        """Its fold."""

    @property
    def hosts(self) -> "Mapping[str, Host]":
        """Its hosts in memory."""

    def policy(self, job: int, /) -> "RequestPolicy":
        """How the URLs of a job are requested."""

    def pop(self, host: "Host", queue: "HostQueue", /) -> "Task | None":
        """The next URL of a host queue that still has its row."""

    def back(self, task: "Task", /) -> None:
        """Put a dispatched URL back at the front of its queue: it was never tried."""

    def lack(self, host: "Host", job: int, setting: str, /) -> None:
        """Leave all URLs of a job on a host queued for a while: this worker lacks a setting for them."""

    def goes_on(self, job: JobState, host: int, /) -> bool:
        """Whether a job may go on, and this worker may request its URLs on a host, given by its hash."""

    def forget(self, host: "Host", until: float | None = None, /) -> None:
        """Take a host without a request in flight out of memory; it sleeps, if a time is given."""


class Task:
    """A URL to fetch, from its dispatch until its done is folded.

    Attributes:
        exit: By which it is requested; None where the worker has no exits, or the request names its proxy.
        key: The row's key: a queue row's, or a waiting row's.
        epoch: The job's, when it was dispatched.
        round: The host's, when it was dispatched.
    """

    __slots__ = ("_request", "domain", "epoch", "exit", "host", "job", "key", "partition", "round", "row")

    def __init__(self, host: "Host", job: JobState, key: bytes, row: r.QueueRow, partition: "HostPartition") -> None:
        self.host = host
        self.job = job
        self.key = key
        self.row = row
        self.partition = partition
        self.domain = host.domain
        self.epoch = job.epoch
        self.round = host.round
        self._request: RequestRecord | None = None
        self.exit: Exit | None = None

    @property
    def identity(self) -> tuple[int, str, int]:
        """Job, URL and id: the same for each dispatch."""
        return self.job.number, self.row.url, self.row.id

    @property
    def request(self) -> "RequestRecord | None":
        """All of its request but the URL; None for a plain GET."""
        if self._request is None and self.row.request:
            self._request = unpacked(self.row.request)
        return self._request

    @property
    def policy(self) -> "RequestPolicy":
        """How it is requested, by the newest record of its job."""
        return self.partition.policy(self.job.number)

    @property
    def sequence(self) -> int:
        """The row's sequence, as a done names it."""
        sequence = int.from_bytes(self.key[-8:], "big")
        return _LAST - sequence if self.key[:1] == b"q" and self.job.lifo else sequence


class RobotsTask:
    """A host whose robots.txt must be fetched before its pages, by the policy of the job whose page is next."""

    __slots__ = ("host", "policy")

    def __init__(self, host: "Host", policy: "RequestPolicy") -> None:
        self.host = host
        self.policy = policy


class NameTask:
    """A host whose name must be resolved before anything is asked of it."""

    __slots__ = ("host",)

    def __init__(self, host: "Host") -> None:
        self.host = host


class HostQueue:
    """The queue of one (job, host): a sorted window of it, and whether the rows hold more.

    The window holds copies of rows, which change with the rows. Rows of a queue lie side by side on disk, so one scan
    fills a window; a look-up for each URL, in the order of dispatch, would read a block each. An entry is the row's key
    without the common prefix, followed by its value: one object takes half the memory of two.
    Invariant: while `more`, every row below `upto` that is not dispatched is in the window; else every row is.

    Attributes:
        turn: The host's turn for which the host is in the job's line.
        ring: The length class of the ring in which it stands there; `LENGTHS` for none.
        asked_at: When the job last asked the host; NEVER once the job's delay has passed.
        due: When the job's next turn at the host is due, on the host's `clock`.
        policy, rules, own_s: Rest that the job wants between two requests, and the policy and robots.txt it is of.
    """

    __slots__ = (
        "asked_at",
        "due",
        "held",
        "job",
        "more",
        "overdue",
        "own_s",
        "policy",
        "prefix",
        "ring",
        "rules",
        "turn",
        "upto",
        "window",
    )  # fmt: skip

    def __init__(self, job: JobState, host: int) -> None:
        self.job = job
        self.prefix = r.queue_prefix(job.number, host)
        self.window: list[bytes] = []
        self.held = 0
        self.overdue: list[tuple[bytes, r.QueueRow]] = []  # nearly always empty, where a deque has 600 bytes
        self.more = False
        self.upto = b""
        self.turn = -1
        self.ring = LENGTHS
        self.asked_at = NEVER
        self.due = 0.0
        self.policy: RequestPolicy | None = None
        self.rules: RobotsRules | None = None
        self.own_s = 0.0

    def delay_s(self, policy: "RequestPolicy", robots: "RobotsRules | None") -> float:
        """Seconds between two requests to the host as the job wants it, Crawl-delay included if it obeys robots.txt.

        Args:
            robots: The host's, as far as it is known.
        """
        if self.policy is not policy or self.rules is not robots:
            rules, wish_s = policy.rules, None
            is_known = robots is not None and robots.is_for(policy.token)
            if rules.robots and robots is not None and is_known:
                wish_s = robots.crawl_delay_s(policy.token)
            self.policy, self.rules = policy, robots if is_known else None
            self.own_s = crawl_delay_s(rules.delay_s, wish_s, rules.max_delay_s)
        return self.own_s

    def __bool__(self) -> bool:
        return bool(self.window or self.overdue or self.more)

    def add(self, key: bytes, value: bytes, most: int) -> bool:
        """Take a new row, and cut the window to `most`. Returns: False for a row behind the window, which stays out."""
        if self.more and key >= self.upto:
            return False
        row = _entry(key, value)
        insort(self.window, row)
        self.held += len(row) + _OBJECT_BYTES
        self._cut(most)
        return True

    def fill(self, found: list[tuple[bytes, bytes]], most: int, pending: Collection[bytes]) -> None:
        """Take the rows found from `upto` on, without dispatched ones; if more than `most`, the rows hold more."""
        self.more = len(found) > most
        if self.more:
            self.upto = found.pop()[0]
        self.window = [_entry(key, value) for key, value in found if key not in pending]
        self.held = sum(map(len, self.window)) + _OBJECT_BYTES * len(self.window)
        self._cut(most)

    def _cut(self, most: int) -> None:
        while len(self.window) > most or (self.held > most * ROW_BYTES and len(self.window) > 1):
            last = self.window.pop()
            self.held -= len(last) + _OBJECT_BYTES
            self.upto = self.prefix + last[:_KEY]
            self.more = True

    def take(self) -> tuple[bytes, bytes]:
        """Take the first row out of the window, which must not be empty; the value of a long row is empty."""
        first = self.window.pop(0)
        self.held -= len(first) + _OBJECT_BYTES
        return self.prefix + first[:_KEY], first[_KEY:]

    def change(self, key: bytes, value: bytes | None) -> None:
        """Change a row of the window, or remove it; a row outside the window is left alone."""
        end = key[r.QUEUE_PREFIX_BYTES :]
        at = bisect_left(self.window, end)
        if at < len(self.window) and self.window[at].startswith(end):
            self.held -= len(self.window.pop(at)) + _OBJECT_BYTES
            if value is not None:
                row = _entry(key, value)
                self.window.insert(at, row)
                self.held += len(row) + _OBJECT_BYTES

    @property
    def length(self) -> int:
        """Its length class, by powers of two: 0 if it is longer than a window, more the shorter it is."""
        return 0 if self.more else WINDOW.bit_length() + 1 - len(self.window).bit_length()

    @property
    def is_spent(self) -> bool:
        """Whether the window was used up: the next URL, if there is one, must be read from the rows."""
        return not (self.window or self.overdue or (self.more and not self.upto))


def _entry(key: bytes, value: bytes) -> bytes:
    """A row as a window holds it."""
    end = key[r.QUEUE_PREFIX_BYTES :]
    return end + value if len(value) <= LONG_ROW else end


class Closed(NamedTuple):
    """Why some jobs could not read robots.txt; others may.

    Attributes:
        to: The setting that they lack; empty for jobs that ask in one way.
        until: When it may be tried again.
        asking: That way, as `RequestPolicy.asking` has it.
    """

    to: str
    reason: str
    until: float
    asking: bytes = b""


class Tries(NamedTuple):
    """Attempts at a robots.txt in a row, in one way of asking, that had no answer to go by.

    Attributes:
        failed: Those that the host failed.
        lost: Those that a proxy failed.
        since: Time of the first one that the host failed.
    """

    failed: int = 0
    lost: int = 0
    since: float = 0.0


NO_TRIES = Tries()


class Host:
    """A host with something to fetch.

    Attributes:
        key: `scheme://name:port`.
        ready_at: It rests until this time, by its answers.
        asked_at: When its last request was handed out, or ended; the first is taken back if no request is sent.
        ended_at: When its last request ended.
        paced_until: It rests until this time, by the delays of its jobs.
        opened_at: As `asked_at`, of requests that count for all exits, such as those for robots.txt.
        exits_until: All exits rest, or have their delays, until this time.
        per_exit: Requests at a time by one exit, where delays count by exit; else 0.
        flying: Requests in flight by each exit, by name, where delays count by exit.
        orders: The commands for it.
        slowed_until: It rests until this time, by a command that slows it.
        is_opening: Its robots.txt was asked for, and no page since.
        is_named: Its name was looked up, found or not, and nothing was asked since.
        standing: Whether it answers, as far as is known.
        delay_s: Rest between two requests, the greatest of its jobs, robots.txt's wish included.
        per_host: Requests at a time, the least of its jobs.
        clock: The time for which the last turn of one of its jobs was due, as in `JobTurns`.
        wish_s: Robots.txt's Crawl-delay, if there is one, for requests that do not come from a queue.
        failures: Requests in a row that were turned away; those of one round count once.
        round: Number of the present round. The first failure of a round ends it.
        tries: Vain attempts at its robots.txt, by `RequestPolicy.asking`.
        rules: Its robots.txt; None until fetched; see `knows_rules`.
        rules_of: The `RequestPolicy.asking` that they are for; empty for all.
        closed: Why some jobs could not read it, at most one entry a setting and a way of asking; their URLs then fail.
    """

    __slots__ = (
        "asked_at", "clock", "closed", "delay_s", "domain", "ended_at", "exits_until", "failures", "flying", "hash",
        "in_flight", "is_named", "is_opening", "key", "opened_at", "orders", "paced_until", "partition", "per_exit",
        "per_host", "queues", "ready_at", "round", "rules", "rules_of", "rules_until", "slowed_until", "standing",
        "tries", "turn", "where", "wish_s",
    )  # fmt: skip

    def __init__(self, key: str, domain: str, partition: "HostPartition", delay_s: float) -> None:
        self.key = key
        self.domain = domain
        self.hash = hashed(key)
        self.partition = partition
        self.queues: dict[int, HostQueue] = {}
        self.delay_s = delay_s
        self.per_host = 1
        self.clock = 0.0
        self.wish_s: float | None = None
        self.ready_at = 0.0
        self.asked_at = self.ended_at = self.opened_at = NEVER
        self.paced_until = self.exits_until = 0.0
        self.per_exit = 0
        self.flying: Counter[str] = Counter()
        self.orders = FREE
        self.slowed_until = 0.0
        self.in_flight = 0
        self.is_opening = False
        self.is_named = False
        self.standing = NEW
        self.failures = 0
        self.round = 0
        self.rules: RobotsRules | None = None
        self.rules_until = 0.0
        self.rules_of = b""
        self.tries: dict[bytes, Tries] = {}
        self.turn = 0
        self.closed: tuple[Closed, ...] = ()
        self.where = IDLE

    def ask(self, now: float, *, by_exit: bool = False) -> None:
        """A request is handed out, or has ended; the next one comes a delay later.

        Args:
            by_exit: Whether it counts for its exit alone.
        """
        self.asked_at = now
        if not by_exit:
            self.opened_at = now
            self.paced_until = max(self.paced_until, now + self.delay_s)

    def asked_elsewhere(self, at: float) -> None:
        self.asked_at = self.ended_at = self.opened_at = max(self.asked_at, at)

    def failed(self, in_round: int) -> None:
        """A request of this round was turned away: the first one of the round is one more failure in a row."""
        is_first = in_round == self.round
        self.failures = max(self.failures + is_first, 1)
        self.round += is_first

    def rest(self, until: float) -> None:
        self.ready_at = max(self.ready_at, until)

    def has_rules(self, policy: "RequestPolicy") -> bool:
        if self.rules is None or not self.rules.is_for(policy.token):
            return False
        return not self.rules_of or self.rules_of == policy.asking

    def knows_rules(self, now: float, policy: "RequestPolicy") -> bool:
        """Whether robots.txt's rules for a policy are known and fresh; else it is read again."""
        return now < self.rules_until and self.has_rules(policy)

    def is_shut(self, now: float) -> bool:
        """Whether its robots.txt was tried lately in vain; only memory knows that."""
        return any(one.asking and now < one.until for one in self.closed)

    def close(self, reason: str, until: float, *, to: str = "", asking: bytes = b"") -> None:
        """Jobs without a setting, or jobs that ask in one way, cannot read robots.txt."""
        others = (one for one in self.closed if (one.to, one.asking) != (to, asking))
        self.closed = (*others, Closed(to, reason, until, asking))

    def answered(self, asking: bytes) -> None:
        """Robots.txt can be read in one way of asking, in all if none is named: vain attempts count no more."""
        self.closed = tuple(one for one in self.closed if one.to or (asking and one.asking != asking))
        if asking:
            self.tries.pop(asking, None)
        else:
            self.tries.clear()

    def closed_to(self, policy: "RequestPolicy", now: float) -> Closed | None:
        """Why robots.txt cannot be read by this policy; None where it may be, as far as is known."""
        for one in self.closed:  # nearly always empty
            is_concerned = policy.asking == one.asking if one.asking else not policy.has(one.to)
            if is_concerned and now < one.until:
                return one
        return None

    @property
    def next_at(self) -> float:
        return max(self.ready_at, self.slowed_until, self.paced_until, self.exits_until)
