"""The quotes site of the test data, served in a thread, with an access log and with pages of our own beside its own.

`serve.py` beside the site says how it is loaded: a stub stands for the limiter of the hosted version, and slugs keep
their capitals.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import socket
import sys
import threading
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import more_pages

OTHER = "127.0.0.2"
"""Another host, for links that leave the first one."""


class Asked(NamedTuple):
    """A request that the site got."""

    at: float
    host: str
    method: str
    path: str
    body: bytes
    headers: dict[str, str]

    @property
    def key(self) -> str:
        """What tells requests apart: method, host, path, and digest of the body."""
        digest = hashlib.sha256(self.body).hexdigest()[:8] if self.body else ""
        return f"{self.method} {self.host}{self.path} {digest}".rstrip()


Wsgi = Callable[[dict[str, Any], Callable[..., object]], Iterable[bytes]]


class Quotes:
    """The site while a test runs.

    Args:
        folder: The site's, in the test data.

    Attributes:
        asked: Each request, in the order of arrival; robots.txt is not noted.
        latency_s: Before each answer.
        closed_port: Of the same address; connections to it are refused.
    """

    def __init__(self, folder: Path) -> None:
        from werkzeug.serving import make_server

        self.asked: list[Asked] = []
        self.latency_s = 0.0
        self._failed: Counter[str] = Counter()
        app = _loaded(folder)
        more_pages.add(app, self._failed)
        inner: Wsgi = app.wsgi_app
        app.wsgi_app = lambda environ, start: self._noted(inner, environ, start)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it notes each request
        first = make_server("127.0.0.1", 0, app, threaded=True)
        self.port = first.server_port
        self._servers = [first, make_server(OTHER, self.port, app, threaded=True)]
        self._closed = socket.socket()
        self._closed.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets it
        self.closed_port: int = self._closed.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def _noted(self, inner: Wsgi, environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        query = f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else ""
        path = environ["PATH_INFO"] + query
        if environ["PATH_INFO"] != "/robots.txt":
            headers = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_")}
            host = environ["HTTP_HOST"].partition(":")[0]
            self.asked.append(Asked(time.monotonic(), host, environ["REQUEST_METHOD"], path, body, headers))
        environ["wsgi.input"] = _Input(body)
        if self.latency_s:
            time.sleep(self.latency_s)
        return inner(environ, start)

    def take(self) -> Counter[str]:
        """Keys of all requests since the last call; what fails at first fails again from now on."""
        self._failed.clear()
        taken, self.asked[:] = Counter(one.key for one in self.asked), []
        return taken

    def close(self) -> None:
        """Ends it."""
        self._closed.close()
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Input:
    """A body that was read, for the application to read again."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        taken = self._body if size < 0 else self._body[:size]
        self._body = self._body[len(taken) :]
        return taken


def _loaded(folder: Path) -> Any:
    """The application, loaded anew: each site has routes of its own."""
    import slugify

    limiter = types.ModuleType("flask_limiter")
    limiter.Limiter = object  # type: ignore[attr-defined]  # a stub
    plain = slugify.slugify
    sys.modules["flask_limiter"] = limiter
    slugify.slugify = partial(plain, lowercase=False)
    try:
        spec = importlib.util.spec_from_file_location("spidyquotes", folder / "spidyquotes.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["spidyquotes"] = module  # Flask looks for its templates beside the module
        # It says where it runs, and leaves its files to the collector.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            spec.loader.exec_module(module)
    finally:
        slugify.slugify = plain
        del sys.modules["flask_limiter"]
    return module.app


def _why_not(folder: Path) -> str:
    """Why the site cannot run here; empty if it can."""
    missing = [name for name in ("flask", "slugify", "werkzeug") if importlib.util.find_spec(name) is None]
    if missing:
        return f"the quotes site needs {', '.join(missing)}"
    return "" if (folder / "spidyquotes.py").exists() else f"no quotes site in {folder}"


@pytest.fixture(scope="module")
def quotes(testdata: Path) -> Iterator[Quotes]:
    """The site, for the tests of one module."""
    folder = testdata / "quotes-site"
    if why := _why_not(folder):
        pytest.skip(why)
    site = Quotes(folder)
    yield site
    site.close()


def canonical(item: object) -> str:
    """An item as text that is equal for equal items."""
    return json.dumps(item, sort_keys=True, ensure_ascii=False)
