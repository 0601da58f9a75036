"""The site that is crawled, as a pure function of its seed: every path, its answer, and the outcome that it must have.

Hosts are loopback addresses 127.3.A.B, so no DNS is needed and each is a registrable domain of its own. A page is
linked from an earlier one of its host, so all can be reached from the front page, whatever else links to it.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

Kind = Literal["page", "missing", "broken", "moved", "cut", "forbidden"]
"""`page`: 200. `missing`: 404. `broken`: 500, always. `moved`: a redirect. `cut`: closed without an answer, always.
`forbidden`: 200 for who asks, but robots.txt disallows it."""

STATUS: dict[Kind, int] = {"page": 200, "missing": 404, "broken": 500, "cut": 0, "forbidden": 200}

SHARES: tuple[tuple[Kind, float], ...] = (("missing", 0.03), ("broken", 0.01), ("moved", 0.04), ("cut", 0.005))
"""Of all paths but front pages; the others are pages."""

CHILDREN = 4
"""Paths that a page introduces: the depth of the site is its logarithm."""

MORE_LINKS = 6
"""Links of a page to paths that are known otherwise; one in three to another host."""

FORBIDDEN = 3
"""Paths of each host that its robots.txt disallows, linked from its first pages."""

ROBOTS: dict[str, str] = {
    "all": "User-agent: *\nDisallow: /private/\n",
    "ours": "User-agent: *\nDisallow: /\n\nUser-agent: crawlog\nDisallow: /private/\n",
    "longest": "User-agent: *\nDisallow: /private\nAllow: /private.html\nDisallow: /private/*$\n",
    "none": "",
}
"""robots.txt by kind; the empty one is answered with 404, so its host forbids nothing."""

WORDS = (
    "bread", "engine", "garden", "harbour", "market", "museum", "paper", "river", "signal", "silver", "tunnel",
    "village", "wind", "window",
)  # fmt: skip


class Target(NamedTuple):
    """A path of a host."""

    host: int
    path: str


@dataclass(frozen=True)
class Entry:
    """One path and its answer.

    Attributes:
        title: As the row must have it; None where there is no page.
        links: hrefs as they stand in the body.
        to: Target of its redirect.
        leads: Targets of all its links and of its redirect: what is reached from here.
        status: Answered status code; 0 for none.
    """

    kind: Kind
    status: int
    title: str | None = None
    links: tuple[str, ...] = ()
    to: str = ""
    leads: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Graph:
    """The whole site.

    Args:
        body_bytes: About the size of a page.
    """

    hosts: int = 10
    pages: int = 20
    seed: int = 1
    port: int = 8900
    body_bytes: int = 3000
    _bodies: dict[Target, bytes] = field(default_factory=dict, repr=False, compare=False)

    def name(self, host: int) -> str:
        """The host's address."""
        return f"127.3.{host // 250}.{host % 250 + 1}"

    def url(self, target: Target) -> str:
        """The canonical URL."""
        return f"http://{self.name(target.host)}:{self.port}{target.path}"

    @property
    def seeds(self) -> list[str]:
        """The front page of every host."""
        return [self.url(Target(host, "/")) for host in range(self.hosts)]

    def robots(self, host: int) -> str:
        """The host's robots.txt; empty for 404."""
        return ROBOTS[("all", "all", "ours", "longest", "none")[self._dice(host, "robots").randrange(5)]]

    def _dice(self, host: int, what: str) -> random.Random:
        return random.Random(f"{self.seed}/{host}/{what}")

    @cached_property
    def entries(self) -> dict[Target, Entry]:
        """Every path that is linked anywhere."""
        paths = [self._paths(host) for host in range(self.hosts)]
        made: dict[Target, Entry] = {}
        for host in range(self.hosts):
            made.update(self._host(host, paths))
        return made

    def _paths(self, host: int) -> list[tuple[str, Kind]]:
        dice = self._dice(host, "paths")
        found: list[tuple[str, Kind]] = [("/", "page")]
        for number in range(1, self.pages):
            path = f"/{dice.choice(WORDS)}/{dice.choice(WORDS)}-{number}"
            path += dice.choice(("", "", ".html", f"?page={number % 7}"))
            found.append((path, _kind(dice.random())))
        return found

    def _host(self, host: int, paths: list[list[tuple[str, Kind]]]) -> Iterator[tuple[Target, Entry]]:
        dice = self._dice(host, "links")
        own = paths[host]
        content = [number for number, (_, kind) in enumerate(own) if kind == "page"]
        introduced: dict[int, list[int]] = {}
        for number in range(1, len(own)):
            before = [known for known in content[: 1 + (number - 1) // CHILDREN] if known < number]
            introduced.setdefault(before[-1], []).append(number)
        forbidden = [f"/private/{dice.choice(WORDS)}-{n}" for n in range(FORBIDDEN)] if self.robots(host) else []
        for number, (path, kind) in enumerate(own):
            here = Target(host, path)
            if kind == "page":
                leads = [Target(host, own[child][0]) for child in introduced.get(number, [])]
                leads += [_any(dice, paths, host) for _ in range(MORE_LINKS)]
                leads += [Target(host, forbidden[number])] if number < len(forbidden) else []
                hrefs = tuple(self._href(dice, here, lead) for lead in leads)
                yield here, Entry(kind, 200, f"{path} of host {host} of site {self.seed}", hrefs, leads=tuple(leads))
            elif kind == "moved":
                to = _content(dice, paths, host)
                yield here, Entry(kind, dice.choice((301, 302, 307, 308)), to=self.url(to), leads=(to,))
            else:
                yield here, Entry(kind, STATUS[kind])
        for path in forbidden:
            yield Target(host, path), Entry("forbidden", 200)

    def _href(self, dice: random.Random, here: Target, lead: Target) -> str:
        """A link in one of the ways that sites write it; none of them is another page."""
        href = lead.path if lead.host == here.host and dice.random() < 0.7 else self.url(lead)
        more = dice.random()
        if more < 0.1:
            href += ("&" if "?" in href else "?") + "utm_source=feed"
        elif more < 0.2:
            href += "#part"
        return href

    @cached_property
    def expected(self) -> dict[str, Entry]:
        """Every URL that pages and redirects reach from the seeds; forbidden paths among it."""
        left = [Target(host, "/") for host in range(self.hosts)]
        reached = set(left)
        while left:
            for lead in self.entries[left.pop()].leads:
                if lead not in reached:
                    reached.add(lead)
                    left.append(lead)
        return {self.url(target): self.entries[target] for target in reached}

    def body(self, target: Target) -> bytes:
        """The body of a path."""
        entry = self.entries[target]
        if target not in self._bodies:
            self._bodies[target] = _html(entry, self._dice(target.host, target.path), self.body_bytes)
        return self._bodies[target]

    def sha256(self, url: str) -> str | None:
        """Hex digest of the body of a URL; None where there is none to keep."""
        address, _, path = url.removeprefix("http://").partition("/")
        a, b = address.partition(":")[0].split(".")[2:]
        return hashlib.sha256(self.body(Target(int(a) * 250 + int(b) - 1, f"/{path}"))).hexdigest()


def _kind(share: float) -> Kind:
    for kind, part in SHARES:
        if share < part:
            return kind
        share -= part
    return "page"


def _any(dice: random.Random, paths: list[list[tuple[str, Kind]]], host: int) -> Target:
    """Some path: of this host mostly."""
    chosen = dice.randrange(len(paths)) if dice.random() < 1 / 3 else host
    return Target(chosen, dice.choice(paths[chosen])[0])


def _content(dice: random.Random, paths: list[list[tuple[str, Kind]]], host: int) -> Target:
    chosen = dice.randrange(len(paths)) if dice.random() < 1 / 3 else host
    return Target(chosen, dice.choice([path for path, kind in paths[chosen] if kind == "page"]))


def _html(entry: Entry, dice: random.Random, size: int) -> bytes:
    title = entry.title or f"Status {entry.status}"
    head = f"<!doctype html><html><head><meta charset=utf-8><title>{title}</title></head><body><h1>{title}</h1>"
    links = "".join(f'<p><a href="{href.replace("&", "&amp;")}">{dice.choice(WORDS)}</a></p>' for href in entry.links)
    text = " ".join(dice.choices(WORDS, k=max(0, (size - len(head) - len(links)) // 7)))
    return f"{head}{links}<p>{text}</p></body></html>".encode()
