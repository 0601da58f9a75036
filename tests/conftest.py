"""What tests share: one broker a session, and a prefix of topics to themselves. No test goes on without end.

after TEST_S                  the test fails where it stands, with its traceback; what it started is ended
`faulthandler_timeout` later  where even that does not help, its process ends with the stack of each thread
BETWEEN_S between two tests   so it does where pytest itself stands still; pytest-xdist would wait for ever

Garbage is collected between tests, by the main thread alone: a finalizer may wait, as those of Kafka's clients do, and
in the thread that hears pytest-xdist it would end the hearing.
"""

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck
from hypothesis import settings as examples

from crawlog.streams.engine import engine as local
from crawlog.streams.engine.engine import Engine
from crawlog.streams.settings.settings import Settings
from tests.support import deployed, processes
from tests.support.corpora import FOLDER, MISSING
from tests.support.forked import Popen
from tests.support.garbage import Collector
from tests.support.logins import login as variables

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of 200 processes compiles crawlog, half a second's work,
sys.dont_write_bytecode = False  # and each worker of pytest-xdist rewrites all asserts

for name, count in {"few": 20, "many": 400}.items():  # `make test`; `make test-long`
    # A test may wait for the processor as long as it takes. Among few examples, some that are too large weigh much.
    spared = [HealthCheck.too_slow, HealthCheck.data_too_large]
    examples.register_profile(name, max_examples=count, deadline=None, suppress_health_check=spared)
examples.load_profile("few")


TEST_S = 600.0
"""For one test with its fixtures; the slowest takes 50 s on two quiet cores, and 240 s at a load of 30."""

BETWEEN_S = 120.0
"""From the end of a test until the next one begins; a worker of pytest-xdist waits for a moment to be given one."""

LOOK_S = 1.0


class Limit:
    """Fails the test that takes too long, in the main thread, whatever that waits for in Python.

    Between tests it ends the process with the stack of each thread: there is nothing that could fail.
    """

    def __init__(self) -> None:
        self._deadline, self._is_between = float("inf"), False
        self._errors = os.dup(2)  # pytest captures the other one
        self._over = threading.Event()
        self._main = threading.get_ident()
        signal.signal(signal.SIGUSR2, self._fail)
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self) -> None:
        """A test begins."""
        self._deadline, self._is_between = time.monotonic() + TEST_S, False

    def end(self) -> None:
        """It is over."""
        self._deadline, self._is_between = time.monotonic() + BETWEEN_S, True

    def close(self) -> None:
        """So is the last one."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            if time.monotonic() > self._deadline:
                if self._is_between:
                    os.write(self._errors, b"no test begins: pytest stands still\n")
                    faulthandler.dump_traceback(self._errors)
                    os._exit(1)
                self._deadline = float("inf")
                signal.pthread_kill(self._main, signal.SIGUSR2)

    def _fail(self, _number: int, _frame: object) -> None:
        pytest.fail(f"the test stands still: not over after {TEST_S:.0f} s")


LIMIT = pytest.StashKey[Limit]()
COLLECTOR = pytest.StashKey[Collector]()


def pytest_configure(config: pytest.Config) -> None:
    """Marks all processes of this suite, those of pytest-xdist too, whose workers inherit it."""
    config.stash[LIMIT] = Limit()
    config.stash[COLLECTOR] = Collector()
    os.environ.setdefault(processes.MARK, uuid.uuid4().hex)
    os.environ.update(deployed.ENVIRON)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing that tests started outlives the suite, also where a test that stood still was ended with its process."""
    config.stash[LIMIT].close()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        processes.end_marked(os.environ.pop(processes.MARK))


def pytest_collection_finish(session: pytest.Session) -> None:
    """From now on a worker is given tests."""
    if not session.config.getoption("collectonly"):
        session.config.stash[COLLECTOR].keep()
        session.config.stash[LIMIT].end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test has a limit, and so have its fixtures."""
    limit = item.config.stash[LIMIT]
    limit.begin()
    try:
        return (yield)
    finally:
        item.config.stash[COLLECTOR].collect()
        limit.end()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes that are no text are named after their argument: packed ones hold the clock, and differ by the packer."""
    is_text = isinstance(val, bytes) and val.isascii() and val.decode().isprintable()
    return argname if isinstance(val, bytes) and not is_text else None


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """What a test's command does at a signal ends with it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def own_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test starts ends with it: a failed one neither breaks the next nor leaves a broker."""
    yield
    processes.end_all(request.node.funcargs.get("tmp_path"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with most slow tests come first, so that the workers of `make test` end together."""
    quick = [item for item in items if not item.get_closest_marker("long")]
    slow = Counter(item.path for item in quick if item.get_closest_marker("slow"))
    broker = Counter(item.path for item in quick if item.get_closest_marker("broker"))
    items.sort(key=lambda item: (-slow[item.path], -broker[item.path]))


@pytest.fixture(autouse=True)
def own_interpreters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests marked `long` start commands as users do, in new interpreters; all others have them forked."""
    monkeypatch.setattr(Popen, "starts_interpreters", request.node.get_closest_marker("long") is not None)


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
    """A broker of its own for this session: one that all workers of pytest-xdist share is seconds behind at times."""
    started = local.start(Settings(), tmp_path_factory.mktemp("engine"), lambda _: None)
    yield started
    started.stop()


@pytest.fixture
def login(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of the session's broker in the environment, for commands that are led there by `--bootstrap`."""
    for name, value in variables(engine.point(Settings())).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def partitions() -> int:
    """Of the topics in `cluster`; a module whose tests do with fewer has a fixture of this name."""
    return Settings().kafka.partitions


@pytest.fixture
def cluster(engine: Engine, login: None, partitions: int, request: pytest.FixtureRequest) -> Settings:
    """Settings that point at the session's broker, with topics of this test alone; none is created yet."""
    settings = deployed.allowed(engine.point(Settings()))
    prefix = f"{request.node.name[:80].replace('[', '-').replace(']', '-')}."
    own = {"prefix": prefix, "partitions": partitions}
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update=own)})


@pytest.fixture(scope="session")
def testdata() -> Path:
    """The folder of test corpora, which are not part of the project; skips where there is none."""
    if not FOLDER.is_dir():
        pytest.skip(MISSING)
    return FOLDER
