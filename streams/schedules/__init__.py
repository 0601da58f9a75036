"""Schedules: when jobs are submitted again. Pure.

crawl.control: JobSchedule ─► rule_of ─► times ─┐
crawl.control: Planned ──────────────────────┴─► decide ─► Planned, before a job of the run is created
a clock, and whether the last run goes on ───┘           ─► cancel the run that goes on (overlap `replace`)
"""

from .planning import LATE_S, MOST, Decision, decide, is_newer, run_names
from .times import NO_TIME, newest, rule_of, stamp, times

__all__ = [
    "LATE_S",
    "MOST",
    "NO_TIME",
    "Decision",
    "decide",
    "is_newer",
    "newest",
    "rule_of",
    "run_names",
    "stamp",
    "times",
]
