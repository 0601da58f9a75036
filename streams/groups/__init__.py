"""Consumer groups: what a commit holds, and how a replay moves a group.

    a worker's commit ─► commits: offset + metadata (ends of what it wrote, how far it got)
                                       │
    `crawlog replay` ─► named: groups ─► held: bounds and commits ─► offsets.plan: new offsets (pure) ─► move
    repairs ───────────────────────────────────────────────────────────────────────────────────────────► commit

The room is used as a module: `groups.held(…)`. The broker moves a group only while it has no members.
"""

from . import offsets
from .commits import (
    REPLAY_ALL,
    HeldRange,
    Position,
    ReplayPlan,
    WrittenEnds,
    is_planned,
    merged_ends,
    reached_offset,
    replay_order,
    without_written,
    written_ends,
)
from .groups import (
    Group,
    check_group_name,
    commit,
    count,
    held,
    known_sink_groups,
    member_names,
    members,
    move,
    named,
    offsets_at,
    times_ms,
)
from .offsets import Move, Target, TargetKind

__all__ = [
    "REPLAY_ALL",
    "Group",
    "HeldRange",
    "Move",
    "Position",
    "ReplayPlan",
    "Target",
    "TargetKind",
    "WrittenEnds",
    "check_group_name",
    "commit",
    "count",
    "held",
    "is_planned",
    "known_sink_groups",
    "member_names",
    "members",
    "merged_ends",
    "move",
    "named",
    "offsets",
    "offsets_at",
    "reached_offset",
    "replay_order",
    "times_ms",
    "without_written",
    "written_ends",
]
