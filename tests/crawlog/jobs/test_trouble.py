"""What a run tells of its workers, once for each change."""

from crawlog.jobs.trouble import Trouble
from crawlog.streams.jobs import FleetReports


def test_a_setting_that_urls_wait_for_is_named_once() -> None:
    """The run would wait for ever: its job's record has the setting, and its own workers lack it."""
    said: list[str] = []
    trouble = Trouble(FleetReports(), said.append)
    for needs in ({}, {"network.allow_private=true": 2}, {"network.allow_private=true": 1}):
        trouble.tell_needs(needs)
    lacked = "network.allow_private=true"
    assert said == [f"URLs wait for a worker with {lacked}: end this command, and give it -s {lacked}"]
