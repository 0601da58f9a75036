"""What exits are, and the settings that name them."""

import re
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from crawlog.streams.requests import Proxy, read_proxy

_NAME = re.compile(r"[\w.:\[\]@-]{1,100}")

_POLICY = re.compile(r"sticky|request|every:([1-9]\d{0,8})|time:([1-9]\d{0,8})s")


class Exit(NamedTuple):
    """A way out.

    Attributes:
        name: Stands in pages and reports; it has no login.
        proxy: Where its requests go; None for those that leave from this machine.
        address: The local address that they leave from; empty for the system's choice.
    """

    name: str
    kind: Literal["proxy", "address", "worker"] = "proxy"
    proxy: Proxy | None = None
    address: str = ""


DIRECT = Exit("direct", "address")  # This machine by itself, where exits of other machines stand beside it


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def read_exit(text: str) -> Exit:
    """The exit in `[NAME=]SCHEME://[USER:PASSWORD@]HOST[:PORT]`; without a name that is HOST:PORT.

    Raises: ValueError: it is none; the message does not repeat it.
    """
    head, equals, rest = text.strip().partition("=")
    is_named = bool(equals) and "://" not in head
    proxy = read_proxy(rest if is_named else text)
    if is_named and not is_name(head):
        raise ValueError("the name of an exit has letters, digits and . : - _ @, at most 100")
    return Exit(head if is_named else urlsplit(proxy.url).netloc, "proxy", proxy)


def read_group(text: str) -> tuple[str, ...]:
    """The names of exits in a group, with commas; `*` stands for any characters.

    Raises: ValueError: there are none.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("a group is names of exits, with commas; * stands for any characters")
    return names


class Policy(NamedTuple):
    """When a host's requests change their exit: after a number of requests, or a time; never where both are 0."""

    requests: int = 0
    seconds: int = 0


def read_policy(text: str) -> Policy:
    """A policy as the setting has it. Raises: ValueError: it is none."""
    found = _POLICY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.60} is no policy: sticky, request, every:N (requests) or time:Ns (seconds)")
    return Policy(1 if text == "request" else int(found[1] or 0), int(found[2] or 0))


def session_name(job: str, domain: str, jar: str) -> str:
    """Names the cookies of a job for a registrable domain, which go by one exit."""
    return f"{job} {domain} {jar}"
