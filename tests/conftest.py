"""What tests share: one broker a session, and a prefix of topics to themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.corpora import FOLDER, MISSING
from crawlog.streams import engine as local
from crawlog.streams.engine import Engine
from crawlog.streams.settings import Settings


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
