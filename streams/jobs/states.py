"""The states of a job: what holds in each, and the orders that change them. Pure.

Rules

    1  A job's state is a field of its record. The fold of partition 0 decides which revision of the record counts.
    2  An order names the state that it leads to and the revision that it was decided on. Its writer looks the order up
       in `_AFTER`, for the state that it read. The fold refuses the order if the revision has changed since, or if no
       order of the table leads from the job's state to that one: any client may have written it.
    3  So two writers cannot combine to a step that the table lacks: one of two orders for a revision is refused.
    4  `cancelled` ends in `deleted` alone; `deleted` ends when the name is taken again, in a later epoch.
    5  An end (`Finished` in crawl.control) is that of a revision. Any later order makes it an end of the past.

The worst race: `cancel` and `finish`.

    1  The coordinator sees in revision 7 that nothing is left. Its order `finish` expects 7.
    2  The operator cancels the job; the command has read revision 7, too. Both orders are in partition 0.
    3  The fold takes the first and refuses the second; both writers read the answer in crawl.control.
    4  If `finish` was first, the command looks again: the job is finished, and its rows are whole. It reports that.
    5  If `cancel` was first, the coordinator sees revision 8 at its next look, and writes the end of that one.
"""

from typing import Literal, NamedTuple

from crawlog.schemas.job_orders import JobStateName


class StateTraits(NamedTuple):
    """What holds in a state.

    Attributes:
        fetched: URLs are fetched.
        queued: URLs with a queue row count as queued; otherwise they are held, and nobody waits for them.
        starts: The spider's `start` may give requests: after an error, or with another spider, it begins again.
        waits: New URLs wait until somebody lets the job go on.
        ended: No command waits for the job.
        outputs: The end waits for the required outputs.
        done: Nothing is left to fetch: a queued URL makes the job run again.
    """

    fetched: bool = False
    queued: bool = False
    starts: bool = False
    waits: bool = False
    ended: bool = False
    outputs: bool = False
    done: bool = False


_TRAITS: dict[str, StateTraits] = {
    "pending": StateTraits(fetched=True, queued=True, starts=True, outputs=True),  # shown: `running`, nothing fetched
    "running": StateTraits(fetched=True, queued=True, starts=True, outputs=True),
    "paused": StateTraits(queued=True, waits=True, outputs=True),
    "stopped": StateTraits(waits=True, ended=True, outputs=True),
    "finished": StateTraits(queued=True, starts=True, ended=True, outputs=True, done=True),
    "watching": StateTraits(queued=True, starts=True, ended=True, outputs=True, done=True),  # until a URL is due again
    "failed": StateTraits(waits=True, ended=True),
    "cancelled": StateTraits(ended=True),
    "deleted": StateTraits(ended=True),
    "waiting": StateTraits(queued=True, waits=True, outputs=True),  # for other jobs: see `flow.py`
}

# As jobs are shown. A deleted job is not.
SHOWN_STATES = tuple(state for state in _TRAITS if state != "deleted")


def traits(state: str) -> StateTraits:
    """What holds in a state of a record, or in one that is shown."""
    return _TRAITS[state]


# By people: the first five. By the coordinator: `limit` (max_pages), `close` (its spider did), `finish` (nothing is
# left), `watch` (nothing is left until a URL is due again), `reopen` (of a finished or watching job with URLs to fetch;
# also by a replay), `release` and `fail` (the jobs that it waited for have ended, or one did not end well). `rewind` is
# one of the whole crawl.
OrderName = Literal[
    "pause",
    "resume",
    "stop",
    "cancel",
    "delete",
    "limit",
    "close",
    "finish",
    "watch",
    "reopen",
    "release",
    "fail",
    "rewind",
]


class _Columns(NamedTuple):
    """The state after an order, by the state before it; None where the order is refused."""

    running: JobStateName | None = None
    paused: JobStateName | None = None
    stopped: JobStateName | None = None
    finished: JobStateName | None = None
    failed: JobStateName | None = None
    cancelled: JobStateName | None = None
    deleted: JobStateName | None = None
    waiting: JobStateName | None = None
    watching: JobStateName | None = None


_AFTER: dict[OrderName, _Columns] = {
    # order: running, paused, stopped, finished, failed, cancelled, deleted, waiting, watching
    "pause": _Columns("paused", "paused", watching="paused"),
    "resume": _Columns("running", "running", "running", None, "running", waiting="running"),
    "stop": _Columns("stopped", "stopped", "stopped", waiting="stopped", watching="stopped"),
    "cancel": _Columns(
        "cancelled", "cancelled", "cancelled", None, "cancelled", "cancelled", None, "cancelled", "cancelled"
    ),
    "delete": _Columns(*("deleted",) * 9),
    "limit": _Columns("stopped"),
    "close": _Columns("stopped"),
    "finish": _Columns("finished"),
    "watch": _Columns("watching"),
    "reopen": _Columns(finished="running", watching="running"),
    "release": _Columns(waiting="running"),
    "fail": _Columns(waiting="failed"),
    "rewind": _Columns(
        "running", "paused", "running", "running", "failed", "cancelled", "deleted", "waiting", "running"
    ),
}


def after(order: OrderName, state: JobStateName) -> JobStateName | None:
    """The state after an order; None if a job in this state does not take it."""
    found: JobStateName | None = getattr(_AFTER[order], state)
    return found


def leads_to(state: JobStateName, wanted: JobStateName) -> bool:
    """Whether any order leads from a state to another one, or keeps it."""
    return state == wanted or any(getattr(columns, state) == wanted for columns in _AFTER.values())


# Reason of a job that `crawlog jobs stop` stopped. A spider that closes its job has a reason of its own.
OPERATOR = "operator"

# Ends, as `how_ended` names them, that leave rows out: they stay in FILE.partial.
PARTIAL_ENDS = frozenset({"stopped", "cancelled", "failed", "deleted"})

SHUTDOWN = "shutdown"  # Why Scrapy ends at a signal


def how_ended(state: str, reason: str) -> tuple[str, str]:
    """How a job that has ended did so, in one word, and the reason with which its spider closed it.

    A stopped job reached `max_pages`, was `closed` by its spider, or was `stopped` by the operator. For other states
    the word is the state.
    """
    if state != "stopped":
        return state, ""
    if reason in ("", OPERATOR):
        return "stopped", ""
    return ("max_pages", "") if reason == "max_pages" else ("closed", reason)


def is_final(state: str, reason: str) -> bool:
    """Whether FILE is made of the rows of a job that has ended so. A limit, and a spider's close, are wished ends."""
    return how_ended(state, reason)[0] not in PARTIAL_ENDS


def finish_reason(state: str, reason: str) -> str:
    """Why a job ended, as Scrapy's `finish_reason`: one that was cancelled or stopped was shut down, as by a signal."""
    how, closed = how_ended(state, reason)
    if how == "closed":
        return closed
    return SHUTDOWN if how in ("cancelled", "stopped") else how
