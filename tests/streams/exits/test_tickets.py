"""Tickets for exits: who may open which tunnel."""

import pytest

from crawlog.streams.exits.tickets import Ticket, TicketKey

NONCE, TARGET = "of-this-exit", "a.test:443"


def test_a_ticket_opens_its_exit_for_its_target() -> None:
    """With and without private addresses."""
    key = TicketKey()
    for allows_private in (False, True):
        ticket = key.ticket(NONCE, TARGET, allows_private=allows_private)
        assert ticket.opens(NONCE, TARGET)
        assert (ticket.key, ticket.allows_private) == (key.public, allows_private)


@pytest.mark.parametrize(("nonce", "target"), [("of-another", TARGET), (NONCE, "b.test:443"), (NONCE, "a.test:80")])
def test_a_ticket_that_was_seen_opens_nothing_else(nonce: str, target: str) -> None:
    """Another process of the exit, another host, another port."""
    assert not TicketKey().ticket(NONCE, TARGET, allows_private=True).opens(nonce, target)


def test_a_changed_ticket_opens_nothing() -> None:
    """The permission for private addresses and the key are signed; bytes of any kind are no ticket."""
    ticket, other = TicketKey().ticket(NONCE, TARGET, allows_private=False), TicketKey()
    changed = [
        Ticket(ticket.user + "+", ticket.password),
        Ticket(other.public, ticket.password),
        Ticket(ticket.user, ticket.password[:-4]),
        Ticket("", ""),
        Ticket("é", "\udcff"),
        Ticket("A" * 44, "A" * 88),
    ]
    assert [one.opens(NONCE, TARGET) for one in changed] == [False] * len(changed)
