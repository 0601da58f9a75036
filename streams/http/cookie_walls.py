"""Redirects that lead back to their start: a check for cookies by way of another URL.

    /page ─ 302 ─► /check ─ 302, a cookie ─► /page

By then /page is known as a redirect, but with the cookie it is a page, so it must be fetched once more. Redirects are
remembered with the cookies of their requests. Pure: the cookies of now are an argument.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

REMEMBERED = 10_000  # Redirects remembered, the latest ones; some 400 bytes each

MOST_HOPS = 5  # Redirects followed back in a row


class _Step(NamedTuple):
    target: str
    cookies: str


class CookieWalls:
    """Redirects seen lately, of all jobs."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[str, str], _Step] = OrderedDict()

    def note(self, job: str, url: str, target: str, cookies: str) -> None:
        """Remember that a URL redirects to another one.

        Args:
            cookies: The cookies of the request.
        """
        self._steps[job, url] = _Step(target, cookies)
        self._steps.move_to_end((job, url))
        if len(self._steps) > REMEMBERED:
            self._steps.popitem(last=False)

    def forget(self, job: str, url: str) -> None:
        self._steps.pop((job, url), None)

    def leads_back(self, job: str, url: str, target: str, cookies_of: Callable[[str], str]) -> bool:
        """Whether a redirect leads to a URL that led to it, and that would now be sent cookies it was not sent then.

        Args:
            cookies_of: The cookies that a URL would be sent now.
        """
        first = step = self._steps.get((job, target))
        for _ in range(MOST_HOPS):
            if step is None or step.target == url:
                break
            step = self._steps.get((job, step.target))
        if first is None or step is None or step.target != url:
            return False
        return cookies_of(target) not in ("", first.cookies)
