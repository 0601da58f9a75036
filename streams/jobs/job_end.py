"""How a job has ended, by the state and the reason of its record; whether FILE is made of its rows. Pure."""

OPERATOR = "operator"
"""Reason of a job that `crawlog jobs stop` stopped; a spider that closes its job gives any other text."""

PARTIAL_ENDS = frozenset({"stopped", "cancelled", "failed", "deleted"})
"""Ends, as `how_ended` names them, that leave rows out: they stay in FILE.partial."""

SHUTDOWN = "shutdown"
"""Why Scrapy ends at a signal."""


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
