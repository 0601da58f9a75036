"""How the URLs of each job of one partition are requested, and which of them this worker may not request.

A job may ask for more than the worker's own settings allow, such as private addresses or proxies. Its URLs then stay
queued: another worker may be allowed to fetch them, or the settings may change.
"""

from collections import Counter
from math import inf

from crawlog.streams.fold import Fold, JobState
from crawlog.streams.fold import rows as r
from crawlog.streams.requests import NEEDS_GROUP, NEEDS_PROXIES, RequestPolicy, policy_of
from crawlog.streams.url import hashed

from .host import Host
from .schedule import Schedule

# Pause before URLs that this worker may not request are tried again: a name may have another address by then.
LACKS_S = 60.0

_EXITS = frozenset({NEEDS_PROXIES, NEEDS_GROUP})  # Settings without which no request of a job may be sent


class RequestPolicies:
    """The policies of one partition's jobs.

    Attributes:
        try_at: When URLs that stayed queued are tried again; `inf` if there are none.
    """

    def __init__(self, fold: Fold, schedule: Schedule) -> None:
        self._fold = fold
        self._schedule = schedule
        self._policies: dict[int, RequestPolicy] = {}  # by the job's number, of its last revision
        self._lacks: dict[tuple[int, int], str] = {}  # by job and host: the missing setting
        self._going: dict[int, bool] = {}  # by the job's number, until its record or a command changes
        self.try_at = inf

    def of_job(self, job: int) -> RequestPolicy:
        """How the URLs of a job are requested."""
        policy = self._policies.get(job)
        if policy is None:
            schedule = self._schedule
            policy = policy_of(self._fold.numbers[job].spec, schedule.usual, schedule.limits)
            self._policies[job] = policy
        return policy

    def greatest_delay_s(self) -> float:
        return max([0.0, *(self.of_job(job.number).rules.delay_s for job in self._fold.with_queue())])

    def least_retry_delay_s(self) -> float:
        return min((self.of_job(job.number).rules.retry_delay_s for job in self._fold.with_queue()), default=0.0)

    def job_changed(self, job: int) -> None:
        """Read the job's record anew, and try its URLs by it."""
        self._policies.pop(job, None)
        self.try_again(job)

    def lack(self, host: Host, job: int, setting: str) -> None:
        """Leave all URLs of a job on a host queued until `try_at`: this worker lacks a setting for them."""
        if not self._lacks:
            self.try_at = self._schedule.now() + LACKS_S
        self._lacks[job, host.hash] = setting

    def goes_on(self, job: JobState, host: int) -> bool:
        """Whether a job may go on, and this worker may request its URLs on a host, given by its hash."""
        going = self._going.get(job.number)  # nine times for each request
        if going is None:
            # Without its exits nothing may leave this machine, not even a question to DNS.
            going = self._schedule.runs(job) and not self.of_job(job.number).lacks & _EXITS
            self._going[job.number] = going
        return going and not (self._lacks and (job.number, host) in self._lacks)

    def obey(self) -> None:
        self._going.clear()

    def needs(self, job: int) -> dict[str, int]:
        """Number of a job's URLs that stay queued, by the setting that this worker lacks for them."""
        for setting in self.of_job(job).lacks & _EXITS:
            return {setting: queued} if (queued := self._fold.numbers[job].counts.queued) else {}
        counts: Counter[str] = Counter()
        for (number, host), setting in self._lacks.items():
            if number == job:
                counts[setting] += self._fold.queued_of(job, host)
        return dict(+counts)

    def try_again(self, job: int) -> None:
        """Forget which settings are missing for a job, and whether it goes on."""
        self._going.pop(job, None)
        for one in [one for one in self._lacks if one[0] == job]:
            del self._lacks[one]

    def try_all(self) -> set[int]:
        """Forget which settings are missing. Returns: The hashes of the hosts concerned."""
        lacked, self._lacks, self.try_at = {host for _, host in self._lacks}, {}, inf
        return lacked


# How many queued URLs of one partition wait because of commands for a job or its hosts.


class HeldHosts:
    """The hosts with a queue that a command pauses or blocks."""

    def __init__(self, fold: Fold, schedule: Schedule) -> None:
        self._fold = fold
        self._schedule = schedule
        self._is_blocked: dict[int, bool] = {}  # by the host's hash; a paused one is not blocked

    def note(self, host: str) -> None:
        """Count a host, given by its key, if a command keeps it waiting: it has a queue."""
        orders = self._schedule.commands.of_host(host)
        if orders.paused:
            self._is_blocked[hashed(host)] = orders.stopped

    def look(self) -> None:
        """Look through all host queues: the commands for hosts have changed."""
        self._is_blocked.clear()
        if self._schedule.holding:
            self._fold.flush()
            for _, value in self._fold.rows.scan(b"g"):
                self.note(r.read_host_queue(value).host)

    def counts(self, job: JobState) -> tuple[int, int]:
        """Number of a job's URLs that are paused, and of those on blocked hosts, for which no run waits."""
        if not job.counts.queued:
            return 0, 0
        counts = [0, 0]
        for host, is_blocked in self._is_blocked.items():
            counts[is_blocked] += self._fold.queued_of(job.number, host)
        paused, blocked = counts
        if self._schedule.commands.of_job(job.name).paused:
            paused = job.counts.queued - blocked
        return paused, blocked
