"""What tests of the adapter share."""

import logging
from collections.abc import Iterator

import pytest
from scrapy.utils.log import LogCounterHandler


@pytest.fixture(autouse=True)
def _counters_of_lines() -> Iterator[None]:
    """Ends the counters of log lines, which a spider's process keeps to its end."""
    yield
    logging.root.handlers[:] = [one for one in logging.root.handlers if not isinstance(one, LogCounterHandler)]
