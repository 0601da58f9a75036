"""A small web of four hosts to try a crawler on: `python examples/demo_site.py`. Standard library only.

A bookshop, its blog, its manual and its help desk, each on its own loopback address, with the features of real sites:
redirects (a chain, a loop, to another host), robots.txt with exceptions and wildcards, broken links, a page that always
fails and one that fails once, one page under many spellings, files that are not HTML, Latin-1, gzip. The site knows the
rows that a correct crawl of its seeds must give (`Site.expected`) and the requests that it got (`Site.asked`).
"""

import argparse
import gzip
import html
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import quote

SHOP, BLOG, MANUAL, HELP = range(4)
NAMES = ("Harbour Books", "The Reading Room", "Shop Manual", "Help Desk")
ADDRESSES = ("127.0.10.1", "127.0.10.2", "127.0.10.3", "127.0.10.4")
"""Loopback addresses that need no set-up on Linux. If they cannot be bound, four ports of 127.0.0.1 replace them."""
PORT = 8800
"""The same port in each run, if it is free, so that an interrupted crawl finds its site again."""

TITLES = (
    "The Salt Road", "A Winter Ledger", "Nine Bridges", "The Cartographer's Aunt", "Low Tide", "Paper Lanterns",
    "An Orchard in Rain", "The Second Lighthouse", "Letters from the Delta", "Blue Hour", "The Clockmaker's Dog",
    "Marginalia", "The Long Field", "Northern Bakery", "A History of Doors", "The Last Ferry", "Glass and Iron",
    "Small Weather", "The Beekeeper's Map", "Harvest Street", "The Quiet Carriage", "Ink", "Seven Kettles",
    "The Other Station",
)  # fmt: skip
GENRES = ("fiction", "history", "travel", "cooking")
POSTS = (
    "Opening day", "On second-hand paper", "Why we shelve by colour", "A visit to the bindery", "Winter hours",
    "Readers' letters", "The great stocktaking", "Ten books for a ferry", "How to mend a spine", "Notes on bookmarks",
    "The cat in the window", "Spring list",
)  # fmt: skip
TAGS = ("news", "craft", "lists")
CHAPTERS = ("start", "ordering", "shipping", "returns", "gift-cards", "accounts", "opening-hours", "glossary")
PER_SHELF = 8
CAFE = quote("café")


class Reply(NamedTuple):
    """An answer.

    Attributes:
        row: Whether a crawl gives a row for it: it is reachable, allowed and no redirect, or one that closes a circle.
        fails_once: The first request gets a 503.
    """

    status: int
    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    location: str = ""
    row: bool = True
    fails_once: bool = False


class Asked(NamedTuple):
    """A request as the site saw it."""

    host: int
    path: str
    status: int


class Site:
    """The four hosts, served by threads between `start` and `stop`.

    Args:
        port: Port of all hosts; 0 for a free one.
    """

    def __init__(self, port: int = PORT) -> None:
        self._servers = _bound(port)
        self.origins = tuple(server.origin for server in self._servers)
        self.replies = _web(self.origins)
        self.asked: list[Asked] = []
        for host, server in enumerate(self._servers):
            server.answer = self._answerer(host)

    @property
    def seeds(self) -> list[str]:
        """Three home pages, and a redirect from the first host to the fourth, which so joins the crawl."""
        shop, blog, manual, _ = self.origins
        return [f"{shop}/", f"{blog}/", f"{manual}/", f"{shop}/help"]

    @property
    def expected(self) -> dict[str, int]:
        """Status by canonical URL of every row that a crawl of the seeds gives."""
        return {f"{self.origins[host]}{path}": r.status for (host, path), r in self.replies.items() if r.row}

    def forbidden(self) -> list[Asked]:
        """Requests that robots.txt does not allow."""
        return [one for one in self.asked if any(one.path.startswith(path) for path in FORBIDDEN[one.host])]

    def repeated(self) -> dict[tuple[int, str], int]:
        """Repeated requests for URLs that succeeded, by host and path."""
        counts = Counter((one.host, one.path) for one in self.asked if one.status < 400 and one.path != "/robots.txt")
        return {place: count - 1 for place, count in counts.items() if count > 1}

    def start(self) -> "Site":
        """Serves in the background."""
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Closes the ports."""
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _answerer(self, host: int) -> Callable[[str], Reply]:
        def answer(target: str) -> Reply:
            path = target.partition("?")[0]
            reply = self.replies.get((host, target)) or self.replies.get((host, path)) or _page(host, 404, "Not found")
            if reply.fails_once and not any((one.host, one.path) == (host, target) for one in self.asked):
                reply = _page(host, 503, "Busy")
            self.asked.append(Asked(host, target, reply.status))
            return reply

        return answer


class Server(ThreadingHTTPServer):
    """One host."""

    daemon_threads = True
    answer: Callable[[str], Reply]

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        address, port = self.server_address[:2]
        assert isinstance(address, str)
        return f"http://{address}:{port}"


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD, keep-alive, gzip if accepted. An answer is one write, because two would wait for an ACK."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:  # the standard library's name
        """Answers a request."""
        reply = self.server.answer(self.path)
        body = reply.body
        head = [f"Content-Type: {reply.content_type}"] if body else []
        if reply.location:
            head.append(f"Location: {reply.location}")
        if reply.status == 503:
            head.append("Retry-After: 1")
        if len(body) > 500 and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 6, mtime=0)
            head.append("Content-Encoding: gzip")
        lines = [f"HTTP/1.1 {reply.status} {self.responses.get(reply.status, ('',))[0]}", *head]
        lines += [f"Content-Length: {len(body)}", "Server: demo", "", ""]
        self.wfile.write("\r\n".join(lines).encode("latin-1") + (b"" if self.command == "HEAD" else body))

    do_HEAD = do_GET  # noqa: N815  # the base class's name

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def _bound(port: int) -> list[Server]:
    """A server for each host: on four addresses with one port, else on four ports of one address."""
    for first in (port, 0):
        servers: list[Server] = []
        try:
            for address in ADDRESSES:
                servers.append(Server((address, servers[0].server_address[1] if servers else first), Handler))
        except OSError:
            for server in servers:
                server.server_close()
        else:
            return servers
    return [Server(("127.0.0.1", 0), Handler) for _ in ADDRESSES]


# The pages.

FORBIDDEN = (("/checkout/pay", "/checkout/basket"), ("/drafts/",), (), ("/internal/", "/export.bak"))
ROBOTS = {
    SHOP: "User-agent: *\nDisallow: /checkout/\nAllow: /checkout/help\n",
    BLOG: "User-agent: otherbot\nDisallow: /\n\nUser-agent: crawlog\nUser-agent: *\nDisallow: /drafts/\n",
    HELP: "# the manual has no robots.txt\nUser-agent: *\nDisallow: /internal/\nDisallow: /*.bak$\n",
}


def _page(host: int, status: int, title: str, body: str = "", *, row: bool = True, fails_once: bool = False) -> Reply:
    head = f"<meta charset=utf-8><title>{html.escape(title)} · {NAMES[host]}</title>"
    text = f"<!doctype html><html lang=en><head>{head}</head>"
    text += f"<body><h1>{html.escape(title)}</h1>{body}</body></html>"
    return Reply(status, text.encode(), row=row, fails_once=fails_once)


def _links(*links: tuple[str, str]) -> str:
    rows = (f'<li><a href="{html.escape(href)}">{html.escape(text)}</a></li>' for href, text in links)
    return f"<ul>{''.join(rows)}</ul>"


def _to(location: str, status: int = 301) -> Reply:
    return Reply(status, location=location, row=False)


def _web(origins: Sequence[str]) -> dict[tuple[int, str], Reply]:
    """Every answer by host and path; robots.txt gives no row."""
    web: dict[tuple[int, str], Reply] = {}
    for host, pages in enumerate((_shop(origins), _blog(origins), _manual(), _help(origins))):
        web.update({(host, path): reply for path, reply in pages})
    for host, text in ROBOTS.items():
        web[host, "/robots.txt"] = Reply(200, text.encode(), "text/plain", row=False)
    return web


def _shop(origins: Sequence[str]) -> Iterator[tuple[str, Reply]]:
    _, blog, manual, _ = origins
    nav = _links(
        ("/", "Home"), ("/books/", "All books"), ("/about", "About"), (f"{blog}/", "Blog"), (f"{manual}/", "Manual")
    )
    genres = _links(*((f"/genre/{genre}", genre.title()) for genre in GENRES))
    yield "/", _page(SHOP, 200, "Welcome", nav + genres + _links(("/index.html", "Home again"), ("/help", "Help")))
    yield "/index.html", _to("/")
    yield "/help", _to(f"{origins[HELP]}/", 302)
    yield "/blog", _to(f"{blog}/posts/1", 308)
    once = f"/{CAFE}/menu"
    yield "/about", _page(SHOP, 200, "About us", nav + "<p>Since 1987.</p>" + _spellings(origins[SHOP]) + _links(
        ("/checkout/help", "How to pay"), ("/checkout/pay?book=1", "Pay"), ("/checkout/basket", "Basket"),
        ("/café/menu", "The café"), (once, "The café again"), ("/catalogue.pdf", "Catalogue"),
        ("/blog", "Moved blog"), ("/r/1", "An old link"), ("/loop/a", "A loop"), ("/books/99", "Sold out"),
        ("mailto:shop@example.com", "Mail"), ("javascript:void(0)", "Top"), ("http://[broken", "A typo"),
    ))  # fmt: skip
    yield once, _page(SHOP, 200, "Café", nav)
    yield "/catalogue.pdf", Reply(200, b"%PDF-1.4\n%demo\n", "application/pdf")
    yield "/checkout/help", _page(SHOP, 200, "How to pay", nav)
    yield "/books/99", _page(SHOP, 404, "Sold out", nav)
    yield "/r/1", _to("/r/2")
    yield "/r/2", _to("r3", 302)
    yield "/r/r3", _to("/books/1", 307)
    yield "/loop/a", _to("/loop/b", 302)
    yield "/loop/b", _to("/loop/a", 302)._replace(row=True)
    yield from _books(nav)


def _spellings(shop: str) -> str:
    """Eight ways to write /books/1 on a page of the shop."""
    address, port = shop.removeprefix("http://").split(":")
    first, *_, third, fourth = address.split(".")
    number = f"{first}.{(int(third) << 8) + int(fourth)}"  # 127.0.10.1 is 127.2561, as WHATWG reads addresses
    return _links(
        ("/books/1#reviews", "one"),
        ("/books/1?utm_source=letter&utm_medium=mail", "two"),
        ("/books/./1", "three"),
        ("/books/../books/1", "four"),
        (f"HTTP://{address}:{port}/books/1", "five"),
        (f"http://{number}:{port}/books/1?gclid=x", "six"),
        ("  /books/1\n", "seven"),
        ("\\books\\1", "eight"),
    )


def _books(nav: str) -> Iterator[tuple[str, Reply]]:
    shelves = [range(at, min(at + PER_SHELF, len(TITLES))) for at in range(0, len(TITLES), PER_SHELF)]
    for number, shelf in enumerate(shelves, 1):
        books = _links(*((f"/books/{book + 1}", TITLES[book]) for book in shelf))
        pages = _links(
            *((f"/books/?page={page}" if page > 1 else "/books/", str(page)) for page in range(1, len(shelves) + 1))
        )
        target = f"/books/?page={number}" if number > 1 else "/books/"
        yield target, _page(SHOP, 200, f"All books, page {number}", nav + books + pages)
    for at, genre in enumerate(GENRES):
        books = _links(*((f"../books/{book + 1}", TITLES[book]) for book in range(at, len(TITLES), len(GENRES))))
        yield f"/genre/{genre}", _page(SHOP, 200, genre.title(), nav + books)
    for book, title in enumerate(TITLES):
        near = _links(*((f"{(book + step) % len(TITLES) + 1}", TITLES[(book + step) % len(TITLES)]) for step in (1, 5)))
        text = f"<p>{html.escape(title)} is a book of {180 + 7 * book} pages. " + "It smells of harbour. " * 20 + "</p>"
        yield f"/books/{book + 1}", _page(SHOP, 200, title, nav + text + near)


def _blog(origins: Sequence[str]) -> Iterator[tuple[str, Reply]]:
    nav = _links(("/", "Home"), ("/archive/", "Archive"), (f"{origins[SHOP]}/", "Shop"), ("/feed.xml", "Feed"))
    newest = _links(*((f"/posts/{number}", POSTS[number - 1]) for number in range(len(POSTS), len(POSTS) - 3, -1)))
    yield "/", _page(BLOG, 200, "Home", nav + newest + _links(("/drafts/13", "Draft"), ("/posts/13", "Next week")))
    yield "/posts/13", _page(BLOG, 404, "Not yet", nav)
    years = _links(*((f"/archive/{year}", str(year)) for year in (1999, 2024)))
    yield "/archive/", _page(BLOG, 200, "Archive", nav + years)
    yield (
        "/archive/2024",
        _page(BLOG, 200, "2024", nav + _links(*((f"../posts/{n + 1}", post) for n, post in enumerate(POSTS)))),
    )
    old = "<html><head><title>Crème brûlée, 1999</title></head><body><a href='/posts/1'>première</a></body></html>"
    yield "/archive/1999", Reply(200, old.encode("latin-1"), "text/html; charset=iso-8859-1")
    items = "".join(
        f"<item><title>{post}</title><link>{origins[BLOG]}/posts/{n + 1}</link></item>" for n, post in enumerate(POSTS)
    )
    yield (
        "/feed.xml",
        Reply(200, f"<rss version='2.0'><channel>{items}</channel></rss>".encode(), "application/rss+xml"),
    )
    for tag in TAGS:
        mine = [number for number in range(1, len(POSTS) + 1) if TAGS[number % len(TAGS)] == tag]
        yield f"/tag/{tag}", _page(BLOG, 200, tag, nav + _links(*((f"/posts/{n}", POSTS[n - 1]) for n in mine)))
    for number, post in enumerate(POSTS, 1):
        tag = TAGS[number % len(TAGS)]
        text = f"<p>{html.escape(post)}. " + "We opened the shutters and read. " * 30 + "</p>"
        links = _links(
            (f"/tag/{tag}", tag),
            (f"/posts/{max(1, number - 1)}", "Earlier"),
            (f"{origins[SHOP]}/books/{number}", "The book"),
        )
        yield f"/posts/{number}", _page(BLOG, 200, post, nav + text + links)


def _manual() -> Iterator[tuple[str, Reply]]:
    """Relative links under a <base>; no robots.txt, so all is allowed."""
    contents = "<base href='/guide/'>" + _links(*((f"{chapter}", chapter) for chapter in CHAPTERS))
    yield (
        "/",
        _page(
            MANUAL, 200, "Contents", contents + _links(("missing", "An unwritten chapter"), ("/manual.txt", "As text"))
        ),
    )
    yield "/guide/missing", _page(MANUAL, 404, "Unwritten")
    yield "/manual.txt", Reply(200, b"The manual as text.\n" * 40, "text/plain; charset=utf-8")
    for at, chapter in enumerate(CHAPTERS):
        after = CHAPTERS[(at + 1) % len(CHAPTERS)]
        links = _links((after, "Next"), ("../", "Contents"), (f"./{after}?utm_campaign=manual#top", "Next, again"))
        yield f"/guide/{chapter}", _page(MANUAL, 200, chapter, "<p>" + "Read this first. " * 25 + "</p>" + links)


def _help(origins: Sequence[str]) -> Iterator[tuple[str, Reply]]:
    yield "/", _page(HELP, 200, "How can we help?", _links(
        ("/contact", "Contact"), ("/faq", "Questions"), ("/status", "Status"), ("/status/busy", "Busy hour"),
        ("/status/broken", "A broken page"), ("/internal/staff", "Staff"), ("/export.bak", "Backup"),
        ("/gone", "Closed"), (f"{origins[SHOP]}/about", "The shop"),
    ))  # fmt: skip
    for name in ("contact", "faq", "status"):
        yield f"/{name}", _page(HELP, 200, name.title(), _links(("/", "Back"), ("/faq", "Questions")))
    yield "/status/busy", _page(HELP, 200, "Busy hour", fails_once=True)
    yield "/status/broken", _page(HELP, 500, "Broken")
    yield "/gone", _page(HELP, 410, "Closed")
    yield "/internal/staff", _page(HELP, 200, "Staff", row=False)
    yield "/export.bak", Reply(200, b"backup", "application/octet-stream", row=False)


def main() -> None:
    """Serves until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serves four small hosts on loopback addresses until Ctrl-C.")
    parser.add_argument("--port", type=int, default=PORT, help="port of all hosts; 0 for a free one")
    site = Site(parser.parse_args().port).start()
    for name, origin in zip(NAMES, site.origins, strict=True):
        print(f"{origin}/  {name}")
    print(f"{len(site.expected)} rows to find; seeds: {' '.join(site.seeds)}")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        site.stop()


if __name__ == "__main__":
    main()
