"""What commands write about jobs, in crawl.urls and crawl.control, and what they read before.

crawl.control ──► read_control ─► ControlState (streams/jobs/)     settled_control: after completing rewinds
job_records ────► every partition of crawl.urls ─► acknowledged ─► crawl.control ─► acknowledged ─► the first seed
job_changes ────► an order in partition 0 ─► its answer in crawl.control
job_creation ───► of several commands that create a job, one has the name
rewind ─────────► a job, or the whole crawl, begins again in a new epoch
"""

from .job_changes import (
    ANSWERED_S,
    apply_change,
    change_job,
    create_job,
    has_workers,
    overruling,
    remove_notes,
    renew_ends,
)
from .job_records import (
    acknowledged,
    end_closing,
    forget_failed_start,
    known_job,
    pages_done,
    read_control,
    write_command,
    write_control,
    write_finished,
    write_job,
    write_joins,
    write_names,
)
from .rewind import counting_epochs, has_begun_again, mend_rewinds, rewind_crawl, rewind_job, settled_control

__all__ = [
    "ANSWERED_S",
    "acknowledged",
    "apply_change",
    "change_job",
    "counting_epochs",
    "create_job",
    "end_closing",
    "forget_failed_start",
    "has_begun_again",
    "has_workers",
    "known_job",
    "mend_rewinds",
    "overruling",
    "pages_done",
    "read_control",
    "remove_notes",
    "renew_ends",
    "rewind_crawl",
    "rewind_job",
    "settled_control",
    "write_command",
    "write_control",
    "write_finished",
    "write_job",
    "write_joins",
    "write_names",
]
