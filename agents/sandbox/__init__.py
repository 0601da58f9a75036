"""crawlog.agents.sandbox."""

from .trial import TOO_COMPLEX, Outcomes, Trial

__all__ = [
    "TOO_COMPLEX",
    "Outcomes",
    "Trial",
]
