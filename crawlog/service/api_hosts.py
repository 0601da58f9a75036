"""Hosts of the fleet: the list, searched, sorted and paged by the service, and one host."""

from typing import Annotated, Literal

import msgspec

from crawlog.streams.hosts import HostPage, HostSort, HostTable, ListedHost

from .answers import AnswerError
from .api_jobs import Limit
from .endpoint import ApiCall, ApiEndpoint


class HostsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which hosts.

    Attributes:
        kind: Only those that are slow, failing or banned; empty for all.
        q: A part of the host's name.
        sort: By default the worst first: banned, failing, slow, then by the time that the queue needs.
    """

    kind: Literal["", "slow", "failing", "banned"] = ""
    q: Annotated[str, msgspec.Meta(max_length=300)] = ""
    sort: HostSort = "worst"
    offset: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0
    limit: Limit = 50


def _hosts(call: ApiCall) -> HostPage:
    query: HostsQuery = call.query
    assert call.hosts is not None
    return call.hosts.page(query.kind or None, query.q, query.sort, query.offset, query.limit)


def _host(call: ApiCall) -> ListedHost:
    assert call.hosts is not None
    return known_host(call.hosts, call.path["host"])


def known_host(table: HostTable, name: str) -> ListedHost:
    """A host by its key. Raises: AnswerError: there are no figures of it."""
    found = table.one(name)
    if found is None:
        raise AnswerError(
            404,
            f"there are no figures of the host {name!r:.300}; it is named as in the list, such as https://name:443\n"
            "Workers report hosts within minutes.",
        )
    return found


ENDPOINTS = (
    ApiEndpoint("GET", "/hosts", "read", "Hosts, the worst first", HostPage, _hosts, query=HostsQuery),
    ApiEndpoint("GET", "/hosts/{host}", "read", "A host", ListedHost, _host),
)
