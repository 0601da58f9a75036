"""How a job has ended, by the state and the reason of its record. Pure."""

OPERATOR = "operator"
"""Reason of a job that `crawlog jobs stop` stopped; a spider that closes its job gives any other text."""


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
