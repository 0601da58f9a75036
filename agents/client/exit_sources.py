"""The exits that settings name: proxies, lists of them, addresses of this machine."""

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

from crawlog.streams.errors import Misconfigured
from crawlog.streams.exits import Exit, Exits, read_exit, read_group, read_list
from crawlog.streams.settings import Settings

LIST_S, MOST_LIST_BYTES = 20.0, 16 << 20  # Of the answer of a URL

Lists = dict[str, tuple[Exit, ...]]  # Proxies by the place of their list


def exits_of(settings: Settings) -> tuple[Exits, Lists]:
    """The exits of a process, and its lists as they are now.

    Raises: Misconfigured: one cannot be read. Requests would leave by an address that was not meant.
    """
    lists: Lists = {}
    for number, place in enumerate(settings.exits.lists, 1):
        try:
            lists[place] = read_place(place)
        except (OSError, ValueError) as error:
            raise Misconfigured(f"exits.lists, number {number}: {list_fault(error)}") from None
    groups = {name: read_group(names) for name, names in settings.exits.groups.items()}
    return Exits(named_exits(settings, lists), groups), lists


def named_exits(settings: Settings, lists: Lists) -> Iterator[Exit]:
    """The exits of settings and lists, in this order."""
    yield from map(read_exit, settings.exits.proxies)
    for place in settings.exits.lists:
        yield from lists[place]
    for address in settings.exits.addresses:
        yield Exit(address, "address", address=address)


def read_place(place: str) -> tuple[Exit, ...]:
    """The exits of a list. Raises: OSError, ValueError: it cannot be read."""
    if "://" not in place:
        return read_list(Path(place).read_text())
    with urlopen(place, timeout=LIST_S) as response:  # noqa: S310  # the operator's, never of a record
        return read_list(response.read(MOST_LIST_BYTES).decode())


def list_fault(error: OSError | ValueError) -> str:
    """Why a list cannot be read; its URL may hold a password."""
    status = getattr(error, "code", None)
    if isinstance(error, OSError):
        return f"the URL answers with {status}" if status else error.strerror or f"{type(error).__name__}"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
