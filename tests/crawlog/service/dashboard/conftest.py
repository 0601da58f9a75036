"""A fleet with a small log full of markup, one for all tests of the dashboard that a worker runs, and a Chromium."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from crawlog.streams.engine import Engine
from tests.support import dashboard
from tests.support.dashboard import ShownFleet, Viewer


@pytest.fixture(scope="session")
def fleet(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownFleet]:
    """The fleet."""
    with dashboard.shown_fleet(engine, tmp_path_factory.mktemp("dashboard")) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    """A Chromium for the tests of a module; skips where there is none."""
    async with dashboard.browser() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def ann(browser: Browser, fleet: ShownFleet) -> AsyncIterator[Viewer]:
    """A page of a user who may do all, one for the tests of a module."""
    async with dashboard.viewer(browser, fleet.url) as one:
        yield one
