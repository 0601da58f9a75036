"""Exits: the ways out of a worker, which of them a request takes, and which of them rest.

    settings, lists, workers of stage `exit` ─► Exit: a proxy, a local address, another machine
                                                 │
    a job's policy and group, the host ─► Exits.pick ─► an exit, or the time until which all of them rest
                                                 ▲
    what its requests came to ─► worked · failed · served · refused (`refusals.py`: by status, redirect, text)

Pure: time is `now`, in seconds on a monotonic clock. The frontier and the client pick; the client reports back.
"""

from .exits import FAILURES, REST_S, Exits, ExitWish
from .lists import read_list
from .refusals import Refusal, refusal_of
from .tickets import Ticket, TicketKey, own_key
from .ways import DIRECT, Exit, is_name, read_exit, read_group, read_policy, session_name

__all__ = [
    "DIRECT",
    "FAILURES",
    "REST_S",
    "Exit",
    "ExitWish",
    "Exits",
    "Refusal",
    "Ticket",
    "TicketKey",
    "is_name",
    "own_key",
    "read_exit",
    "read_group",
    "read_list",
    "read_policy",
    "refusal_of",
    "session_name",
]
