"""A site with pictures and documents, some of them missing, moved, forbidden or endless."""

import io
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable

PROJECT = Path(__file__).parent.parent / "projects" / "gallery"


def picture(number: int) -> bytes:
    """A picture of its own colour: JPEG, PNG with transparency, or one that is too small."""
    out = io.BytesIO()
    side = 8 if number % 7 == 6 else 40 + number % 50
    if number % 2:
        Image.new("RGBA", (side, side), (number % 256, 40, 90, 128)).save(out, "PNG")
    else:
        Image.new("RGB", (side, side + 10), (200, number % 256, 30)).save(out, "JPEG")
    return out.getvalue()


def paper(number: int) -> bytes:
    """A document."""
    return b"%%PDF-1.4 paper %d\n" % number * (number % 40 + 1)


def page(number: int) -> bytes:
    """A page with pictures and documents, some of which do not come."""
    names = [f"img/{number}", f"img/{number + 1}", f"missing/{number}", f"moved/{number}", f"private/{number}"]
    pictures = "".join(f'<img src="/{name}.jpg">' for name in names)
    papers = f'<embed src="/paper/{number}.pdf"><embed src="/missing/gone-{number}.pdf">'
    return f"<h1>page {number}</h1>{pictures}{papers}".encode()


def links(pages: int) -> bytes:
    """The first page."""
    return "".join(f'<a href="/page/{one}">{one}</a>' for one in range(pages)).encode()


class Gallery:
    """The site while a test runs.

    Attributes:
        asked: Path and time of each request but those for robots.txt, in the order of arrival.
        headers: Of the requests, by path.
        latency_s: Before each answer.
    """

    def __init__(self, pages: int = 12) -> None:
        self.pages = pages
        self.asked: list[tuple[str, float]] = []
        self.headers: dict[str, dict[str, str]] = {}
        self.latency_s = 0.0
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def counts(self) -> Counter[str]:
        """How often each path was asked for."""
        return Counter(path for path, _ in self.asked)

    def project(self, folder: Path) -> Path:
        """The project for this site, in a folder of its own."""
        made = Path(copytree(PROJECT, folder / "gallery"))
        for path in made.rglob("*.py"):
            path.write_text(path.read_text().replace("http://gallery.test", self.origin))
        return made

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, type (of a redirect its target) and body."""
        kind, _, rest = path.strip("/").partition("/")
        number = int("".join(filter(str.isdigit, rest)) or 0)
        if kind == "moved":
            return 302, f"/img/{number + 100}.jpg", b""
        answers: dict[str, tuple[str, Callable[[], bytes]]] = {
            "": (
                "text/html",
                lambda: links(self.pages),
            ),
            "robots.txt": ("text/plain", lambda: b"User-agent: *\nDisallow: /private/\n"),
            "page": ("text/html", lambda: page(number)),
            "img": ("image/png" if number % 2 else "image/jpeg", lambda: picture(number)),
            "paper": ("application/pdf", lambda: paper(number)),
        }
        if kind not in answers:
            return 404, "text/html", b"no such thing"
        named, body = answers[kind]
        return 200, named, body()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Nothing: clients are killed."""


def _handler_of(site: Gallery) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # Python's own name
            if self.path != "/robots.txt":
                site.asked.append((self.path, time.monotonic()))
                site.headers[self.path] = dict(self.headers)
                time.sleep(site.latency_s)
            status, kind, body = site.answer(self.path)
            self.send_response(status)
            self.send_header("Location" if status == 302 else "Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    return Handler
