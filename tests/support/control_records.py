"""The state of crawl.control, from records that a test names."""

from crawlog.schemas import control
from crawlog.schemas.control import Control
from crawlog.streams.jobs import ControlState


def control_of(*records: Control) -> ControlState:
    """The state after these records."""
    made = ControlState()
    for record in records:
        made.take(control.key(record), record)
    return made
