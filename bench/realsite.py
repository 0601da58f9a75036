"""A real site that nobody here wrote: crawlog must find the HTML pages that `wget --recursive` finds, URL by URL.

The site is Debian's python3.11-doc behind Debian's nginx on loopback; both are installed when they are missing. nginx's
access log says what each crawler fetched, and crawlog's rows must name the same pages.

    python -m bench.realsite                both, and the difference; 0 when there is none
    python -m bench.realsite --wget-only    the reference alone
"""

import argparse
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.peer import CRAWLOG, apt_install
from bench.results import options_of, run_as, section, table, versions
from bench.rows import doubled, rows_of
from tests.support.synthetic_site import WORK, free_port

PACKAGE = "python3.11-doc"
PAGES = Path("usr/share/doc/python3.11/html")
EXPECTED = 526
"""HTML pages that wget finds in python3.11-doc 3.11.2 of Debian 12."""

NO_PAGES = ("/robots.txt", "/ready.txt")

FOLDER = WORK / "realsite"
CONFIGURATION = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ }}
http {{
    include /etc/nginx/mime.types;
    log_format judge '$status\\t$sent_http_content_type\\t$request_method\\t$request_uri';
    access_log {folder}/access.log judge;
    client_body_temp_path {folder}/temp; proxy_temp_path {folder}/temp; fastcgi_temp_path {folder}/temp;
    uwsgi_temp_path {folder}/temp; scgi_temp_path {folder}/temp;
    server {{ listen 127.0.0.1:{port}; root {root}; index index.html; }}
}}
"""


@dataclass(frozen=True)
class Fetched:
    """Requests of a crawler, by the server's log.

    Attributes:
        pages: Request targets answered with 200 and HTML.
        repeated: Requests of a page beyond its first.
        broken: Targets answered with 4xx or 5xx.
    """

    pages: set[str]
    repeated: int
    broken: set[str]


class Server:
    """nginx over a folder, on a free port of 127.0.0.1."""

    def __init__(self, root: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/index.html"
        self._log = FOLDER / "access.log"
        self._log.unlink(missing_ok=True)
        self._read = 0
        text = CONFIGURATION.format(folder=FOLDER, port=self.port, root=root)
        (FOLDER / "nginx.conf").write_text(text)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Runs nginx.

        Raises: RuntimeError: it does not answer.
        """
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        with subprocess.Popen([program, "-p", str(FOLDER), "-c", "nginx.conf", "-e", "error.log"]) as nginx:
            try:
                self._wait()
                yield
            finally:
                nginx.terminate()

    def _wait(self) -> None:
        for _ in range(100):
            try:
                urllib.request.urlopen(self.url.replace("index.html", "ready.txt")).close()
            except urllib.error.HTTPError:  # it answers: there is no such page
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"nginx does not answer; see {FOLDER / 'error.log'}")

    def fetched(self) -> Fetched:
        """Paths fetched since the last call."""
        with self._log.open() as log:
            log.seek(self._read)
            lines = [line.rstrip("\n").split("\t") for line in log]
            self._read = log.tell()
        got = Counter(
            target for status, kind, method, target in lines if status == "200" and "html" in kind and method == "GET"
        )
        broken = {target for status, _, _, target in lines if status >= "400" and target not in NO_PAGES}
        return Fetched(set(got), got.total() - len(got), broken)


def documents() -> Path:
    """The folder of the HTML pages, installed when missing; unpacked here where Debian is set to leave out documents.

    Raises: SystemExit: there is no way to get it.
    """
    if (Path("/") / PAGES / "index.html").exists():
        return Path("/") / PAGES
    here = FOLDER / "doc" / PAGES
    if not (here / "index.html").exists():
        (FOLDER / "doc").mkdir(parents=True, exist_ok=True)
        if subprocess.run(["apt-get", "download", PACKAGE], cwd=FOLDER, check=False).returncode:
            sys.exit(f"no {PACKAGE}: install it, or run apt-get update")
        archive = next(FOLDER.glob(f"{PACKAGE}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(archive), str(FOLDER / "doc")], check=True)
    return here


def run_wget(url: str) -> None:
    """The reference: everything below `url`, without limit of depth."""
    shutil.rmtree(FOLDER / "wget", ignore_errors=True)
    command = ["wget", "--recursive", "--level=inf", "--no-verbose", "--directory-prefix", str(FOLDER / "wget"), url]
    with (FOLDER / "wget.log").open("wb") as log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    if code not in {0, 8}:  # 8: the server answered with an error, e.g. for robots.txt
        sys.exit(f"wget ended with {code}; see {FOLDER / 'wget.log'}")


def run_crawlog(url: str, more: list[str]) -> list[str]:
    """Crawls with crawlog.

    Returns: The request target of each row.
    """
    rows = FOLDER / "rows.jsonl"
    rows.unlink(missing_ok=True)
    shutil.rmtree(FOLDER / "data", ignore_errors=True)
    settings = ["network.allow_private=true", "politeness.delay_s=0", "politeness.per_host=16"]
    words = [word for setting in settings for word in ("-s", setting)]
    command = [str(CRAWLOG), "run", url, "-o", str(rows), "--data", str(FOLDER / "data"), *words, *more]
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(f"crawlog ended with {code}")
    return [target_of(row["url"]) for row in rows_of(rows)]


def target_of(url: str) -> str:
    """The request target of a URL."""
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def differences(wanted: set[str], got: set[str], who: str) -> int:
    """Prints both sides of a difference; how many there are."""
    for title, targets in ((f"only wget, not {who}", wanted - got), (f"only {who}, not wget", got - wanted)):
        for target in sorted(targets)[:20]:
            print(f"    {title}: {target}")
        if len(targets) > 20:
            print(f"    {title}: {len(targets) - 20} more")
    return len(wanted ^ got)


def _write(found: dict[str, Fetched], verdict: str) -> None:
    lines = [[name, str(len(one.pages)), str(one.repeated), str(len(one.broken))] for name, one in found.items()]
    body = table(["", "HTML pages", "asked for again", "broken"], lines)
    facts = {"run": run_as("realsite"), "site": f"Debian's {PACKAGE}, served by nginx on loopback"}
    section("realsite", "A real site", f"{body}\n\n{verdict}", facts | versions(["crawlog"]))


def main() -> int:
    """0 when crawlog fetched and wrote exactly wget's pages, each once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the same; nothing is written")
    parser.add_argument("--wget-only", action="store_true")
    parser.add_argument("more", nargs="*", default=[], help="further arguments of crawlog run, after --")
    args = options_of(parser)
    FOLDER.mkdir(parents=True, exist_ok=True)
    apt_install("nginx", "nginx-light")
    apt_install("wget", "wget")
    if not (Path("/") / PAGES / "index.html").exists():
        apt_install(PACKAGE, PACKAGE)  # no program of that name: always asks apt
    server = Server(documents())
    with server.serving():
        run_wget(server.url)
        wget = server.fetched()
        print(f"wget: {len(wget.pages)} HTML pages, {wget.repeated} repeated, {len(wget.broken)} broken")
        if len(wget.pages) != EXPECTED:
            print(f"    {EXPECTED} were expected: another version of {PACKAGE}?")
        if args.wget_only:
            return 0
        rows = run_crawlog(server.url, args.more)
        ours = server.fetched()
    named = {target for target in rows if target in ours.pages}
    print(
        f"crawlog: {len(ours.pages)} HTML pages, {ours.repeated} repeated, {len(ours.broken)} broken, {len(rows)} rows"
    )
    again = doubled(rows)
    wrong = differences(wget.pages, ours.pages, "crawlog") + differences(wget.pages, named, "crawlog's rows")
    wrong += len(again)
    verdict = ", ".join([f"{wrong} differences" if wrong else "the same pages, URL by URL", *again])
    print(verdict)
    if args.write:
        _write({"wget": wget, "crawlog": ours}, f"crawlog: {len(rows)} rows; {verdict}.")
    return 1 if wrong or ours.repeated else 0


if __name__ == "__main__":
    sys.exit(main())
