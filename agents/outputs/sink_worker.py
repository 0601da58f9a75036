"""The sink's worker: of one output where `CRAWLOG_SINK` names it, else of the outputs of all jobs on the fleet."""

import os
from typing import TYPE_CHECKING

from crawlog.schemas.progress import FLEET
from crawlog.streams.log import SINK_ENVIRONMENT
from crawlog.streams.sink import PrivateOutputs

if TYPE_CHECKING:
    from crawlog.streams.worker import CrawlApp


def attach(app: "CrawlApp") -> None:
    """Make an app the sink that the environment names, or a fleet's."""
    text = os.environ.get(SINK_ENVIRONMENT, "")
    if text and '"outputs"' not in text:
        from . import sink_agent

        sink_agent.attach(app)
    else:
        _attach_fleet(app)


def _attach_fleet(app: "CrawlApp") -> None:
    from .outputs_worker import OutputsWorker

    private = PrivateOutputs.read(os.environ)
    worker = OutputsWorker(app, private)
    app.sink_name = private.id if private is not None else FLEET
    app.on_rebalance_started.append(worker.orders.rebalance_started)
    app.on_owned.append(worker.owned)
    app.on_revoking.append(worker.revoking)
    app.reports = worker.reports
    app.agent(app.input, name="sink")(worker.events)
