"""What tests share: one broker a session, and a prefix of topics to themselves."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from bench.corpora import FOLDER, MISSING
from crawlog.streams import engine as local
from crawlog.streams.engine import Engine
from crawlog.streams.settings import Settings


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command's logs, set for a process of its own, end with the test that ran it: they go to its standard error."""
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A broker of its own for this session."""
    started = local.start(Settings(), tmp_path_factory.mktemp("engine"), lambda _: None)
    yield started
    started.stop()


@pytest.fixture
def cluster(engine: Engine, request: pytest.FixtureRequest) -> Settings:
    """Settings that point at the session's broker, with topics of this test alone; none is created yet."""
    settings = engine.point(Settings())
    prefix = f"{request.node.name[:80].replace('[', '-').replace(']', '-')}."
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"prefix": prefix})})


@pytest.fixture(scope="session")
def testdata() -> Path:
    """The folder of test corpora, which are not part of the project; skips where there is none."""
    if not FOLDER.is_dir():
        pytest.skip(MISSING)
    return FOLDER
