"""The sink's worker: of one output where `CRAWLOG_SINK` names it, else of the outputs of all jobs on the fleet."""

import os
from typing import TYPE_CHECKING

from crawlog.streams.log import SINK_ENVIRONMENT

if TYPE_CHECKING:
    from crawlog.streams.worker import CrawlApp


def attach(app: "CrawlApp") -> None:
    """Make an app the sink that the environment names, or a fleet's."""
    if os.environ.get(SINK_ENVIRONMENT):
        from . import sink_agent

        sink_agent.attach(app)
    else:
        from . import fleet_sink

        fleet_sink.attach(app)
