"""The browser's stage without the crawl: a dispatcher that owns some hosts, wishes, budgets."""

import time
from collections.abc import Awaitable, Callable

from crawlog.agents.browser.resources import Budget, JobPage
from crawlog.streams.frontier.dispatcher import Frontier
from crawlog.streams.frontier.host import Host
from crawlog.streams.job_spec import own_policy
from crawlog.streams.rendering import Wish
from crawlog.streams.requests.request_rules import RequestPolicy
from crawlog.streams.robots.robots import RobotsRules
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.place import Place

DELAY_S = 0.15


class Owner:
    """A dispatcher that owns some hosts."""

    def __init__(self, *names: str) -> None:
        self.frontier = Frontier(own_policy(Settings()), time.monotonic, time.time)
        self.hosts: dict[str, Host] = {}
        self.names = names
        self.frontier.lend = self.lend  # type: ignore[method-assign]  # a partition would need a state

    def lend(self, place: Place) -> Host | None:
        """The host, if it is one of ours."""
        if place.domain not in self.names:
            return None
        return self.hosts.setdefault(place.host, Host(place.host, place.domain, None, DELAY_S))  # type: ignore[arg-type]  # no queue


def script(url: str) -> Wish:
    """A wish for a script."""
    return Wish("GET", url, "script")


def budget(requests: int = 100, size_bytes: int = 1 << 20, job: str = "j") -> Budget:
    """A page's."""
    return Budget(JobPage(job), requests, size_bytes, is_inside=True)


def no_rules(owner: Owner) -> Callable[[Host, RequestPolicy], Awaitable[None]]:
    """Hosts without a robots.txt."""

    async def ask_rules(host: Host, _policy: RequestPolicy) -> None:
        host.rules, host.rules_until = RobotsRules.parse(b""), time.monotonic() + 60.0
        owner.frontier.finished(host)

    return ask_rules
