"""crawlog.agents.sandbox."""

from .trial import TOO_COMPLEX, Trial, TrialHistory

__all__ = [
    "TOO_COMPLEX",
    "Trial",
    "TrialHistory",
]
