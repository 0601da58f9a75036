"""How a job's URLs are asked for: its record's rules, checked, and by whose word where it has none. Pure."""

from functools import lru_cache
from math import inf
from typing import NamedTuple

from ..schemas.urls import JobSpec, RequestRules
from .outbound import read_header, read_user_agent


class Manner(NamedTuple):
    """How the URLs of one revision of a job are asked for.

    Attributes:
        token: Product token that robots.txt groups are matched with.
    """

    rules: RequestRules = RequestRules()
    token: str = "crawlog"  # noqa: S105  # a robots.txt product token


def manner_of(spec: JobSpec, usual: Manner) -> Manner:
    """By a job's record; the worker's usual one where that does not say it."""
    return usual if spec.requests is None else Manner(spec.requests, spec.token)


def check_rules(rules: RequestRules) -> None:
    """Whether hosts can be asked by the rules of a record, which any client may have written.

    Raises: ValueError: They cannot.
    """
    for name in ("delay_s", "max_delay_s"):
        if not 0 <= getattr(rules, name) < inf:
            raise ValueError(f"requests.{name} is {getattr(rules, name)}, not a number of seconds")
    if rules.per_host < 1:
        raise ValueError(f"requests.per_host is {rules.per_host}, not 1 or more")
    read_user_agent(rules.user_agent)
    for header in rules.headers:
        read_header(header)


@lru_cache(1024)
def headers_of(user_agent: str, headers: tuple[str, ...]) -> dict[str, str]:
    """What every request of a job is sent with; not to be changed."""
    return {"User-Agent": user_agent, **dict(map(read_header, headers))}
