"""Parses suspicious pages in a child process first.

    worker: trial ─ a page that is not simple ─► child (one fork a page) ─ parsed in time ─► the worker may parse it
              │                                                          └ killed ─► too_complex, a dead letter
              └ TrialHistory: CPU time of each domain's pages, in a file that outlives the worker

The child has limits of time and memory; a worker never parses a page that its child did not survive.
"""

from .trial import TOO_COMPLEX, Trial, TrialHistory

__all__ = [
    "TOO_COMPLEX",
    "Trial",
    "TrialHistory",
]
