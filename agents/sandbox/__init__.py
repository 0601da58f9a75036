"""crawlog.agents.sandbox."""

from .trial import TOO_COMPLEX, Outcomes, Trial, TrialError

__all__ = [
    "TOO_COMPLEX",
    "Outcomes",
    "Trial",
    "TrialError",
]
