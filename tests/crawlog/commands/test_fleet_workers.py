"""A planned stop of a worker, by the reports that name it."""

from typing import Literal

import pytest

from crawlog.commands import fleet_workers
from crawlog.streams.errors import UnknownName
from crawlog.streams.fleet import WorkerView
from crawlog.streams.settings import Settings


@pytest.mark.parametrize("action", ["stop", "drain"])
def test_the_refusal_of_a_silent_worker_says_that_one_without_partitions_does_not_report(
    monkeypatch: pytest.MonkeyPatch, action: Literal["stop", "drain"]
) -> None:
    """It lives, and no command reaches it: the third fetch worker where there are two partitions."""
    monkeypatch.setattr(fleet_workers, "list_workers", lambda _: [WorkerView("fetch-0", "fetch", "m1", 7)])
    with pytest.raises(UnknownName, match=r"there are: fetch-0\.\n.* owns no partition .* SIGTERM on its machine"):
        fleet_workers.order_worker(Settings(), "fetch-2", action)
