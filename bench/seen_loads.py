"""Two loads for a table of known URLs: offers in an order fixed by a seed, without end.

*Uniform* is the worst case: nine of ten offers are known URLs, each equally likely, fifty of a record on as many
domains. *Crawl* is made like a crawl of many hosts: a thousand are asked by turns, the 500 largest and 500 others, each
of which is replaced after 50 pages. A page's record has 20 URLs: 6 are new, 10 are among the latest 500 that its host
found, 2 are any of its host's, and 2 any at all.
"""

import random
import sys
from collections.abc import Iterator

from bench.seen import domains_of

URLS_PER_DOMAIN = 1_000
HOSTS = 1_000
PAGES_OF_SMALL = 50
NEAR = 500
UNIFORM_RECORD = 50

Offer = tuple[int, int]
"""(number of a URL, number of its domain)."""


def known_domains(known: int) -> list[range]:
    """The URLs of each domain, as numbers."""
    return domains_of(known, known // URLS_PER_DOMAIN)


class Load:
    """Records of offers; URLs from `known` on are new when they come first."""

    def __init__(self, known: int) -> None:
        self._dice = random.Random(11)
        self._domains = known_domains(known)
        self._known = known
        self._starts = [urls.start for urls in self._domains]
        self._next = known

    def uniform(self) -> Iterator[list[Offer]]:
        """Each known URL equally likely; one of ten is new."""
        while True:
            yield [self._new(self._any()[1]) if not n % 10 else self._any() for n in range(UNIFORM_RECORD)]

    def crawl(self) -> Iterator[list[Offer]]:
        """Pages of the hosts that are asked now, by turns."""
        dice, most = self._dice, len(self._domains)
        large = list(range(min(HOSTS // 2, most // 2)))
        small = [self._small(large) for _ in large]
        near = {domain: [(n, domain) for n in self._domains[domain][-NEAR:]] for domain in (*large, *small)}
        for turn in range(1, sys.maxsize):
            for at, domain in enumerate(small):
                if (turn + at) % PAGES_OF_SMALL == 0:
                    near.pop(domain, None)
                    small[at] = fresh = self._small(large)
                    near[fresh] = [(n, fresh) for n in self._domains[fresh][-NEAR:]]
            for domain in (*large, *small):
                latest, urls = near.setdefault(domain, []), self._domains[domain]
                new = [self._new(domain) for _ in range(6)]
                record = new + dice.choices(latest or new, k=10)
                record += [(dice.choice(urls), domain) for _ in range(2)] + [self._any() for _ in range(2)]
                near[domain] = (latest + new)[-NEAR:]
                dice.shuffle(record)
                yield record

    def _small(self, large: list[int]) -> int:
        return self._dice.randrange(len(large), len(self._domains))

    def _any(self) -> Offer:
        number = self._dice.randrange(self._known)
        low, high = 0, len(self._starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._starts[middle] <= number else (low, middle)
        return number, low

    def _new(self, domain: int) -> Offer:
        self._next += 1
        return self._next - 1, domain
