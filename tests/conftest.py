"""What tests share: one broker a session, and a prefix of topics to themselves."""

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from forked import Server
from hypothesis import HealthCheck
from hypothesis import settings as examples

from bench.corpora import FOLDER, MISSING
from bench.log import login as variables
from crawlog.streams import engine as local
from crawlog.streams.engine import Engine
from crawlog.streams.settings import Settings

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of 200 processes compiles crawlog, half a second's work,
sys.dont_write_bytecode = False  # and each worker of pytest-xdist rewrites all asserts

examples.register_profile("beside others", deadline=None, suppress_health_check=[HealthCheck.too_slow])
examples.load_profile("beside others")  # a test may wait for the processor as long as it takes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with most slow tests come first, so that the workers of `make test` end together."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    broker = Counter(item.path for item in items if item.get_closest_marker("broker"))
    items.sort(key=lambda item: (-slow[item.path], -broker[item.path]))


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
def login(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of the session's broker in the environment, for commands that are led there by `--bootstrap`."""
    for name, value in variables(engine.point(Settings())).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cluster(engine: Engine, login: None, request: pytest.FixtureRequest) -> Settings:
    """Settings that point at the session's broker, with topics of this test alone; none is created yet."""
    settings = engine.point(Settings())
    prefix = f"{request.node.name[:80].replace('[', '-').replace(']', '-')}."
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"prefix": prefix})})


@pytest.fixture(scope="session")
def forks() -> Iterator[Server]:
    """What forks workers, for tests that start many."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def testdata() -> Path:
    """The folder of test corpora, which are not part of the project; skips where there is none."""
    if not FOLDER.is_dir():
        pytest.skip(MISSING)
    return FOLDER
