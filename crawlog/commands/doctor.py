"""`crawlog doctor`: checks the machine and the cluster for the needs of a crawl; each finding has its advice."""

import contextlib
import os
import platform
import resource
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit

from crawlog.streams.errors import CrawlError, EngineError, Misconfigured

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

Status = Literal["ok", "warn", "fail"]

LOW_DISK_BYTES = 5 << 30  # crawl.pages keeps bodies for days: a million pages of 30 kB take 10 GB with lz4
NO_DISK_BYTES = 512 << 20  # Kafka preallocates index files and stops at the first failed write
LOW_MEMORY_BYTES = 1 << 30  # Broker 300 MB, two workers 150 MB each, the supervisor, the page cache
FILES_BESIDE_FETCHES = 512  # RocksDB and Kafka keep some hundred files open per process
# Kafka's own default of offsets.retention.minutes: a group that is idle for longer loses its offsets.
WEEK_MIN = 7 * 24 * 60
REACHED_S = 2.0  # Longest wait for an exit of another machine, seconds
CENTURY_MIN = 100 * 365 * 24 * 60


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        found: The present state, with numbers.
        advice: The next command or setting; empty when all is well.
    """

    check: str
    status: Status
    found: str
    advice: str = ""


Check = Callable[["Settings"], Iterator[Finding]]


def examine(settings: "Settings") -> list[Finding]:
    """All findings, in the order of a crawl's start; an error of crawlog in a check becomes a finding."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check(settings)
        except CrawlError as error:
            told, _, advice = str(error).partition("\n")
            findings.append(Finding(check.__name__.strip("_"), "fail", told, advice))
    return findings


def _python(_: "Settings") -> Iterator[Finding]:
    yield Finding(
        "crawlog", "ok", f"{version('crawlog')}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    )
    if sys.platform != "linux":
        yield Finding("system", "warn", "workers of a killed crawlog live on here", "use Linux, or end them by hand")


def _packages(__: "Settings") -> Iterator[Finding]:
    """The packages whose exact version matters: those pinned in crawlog's own metadata."""
    needed = [text.partition(";")[0].strip() for text in requires("crawlog") or ()]
    found, wrong = [], []
    for name, _, wanted in (text.partition("==") for text in needed if "==" in text):
        has = _version(name)
        found.append(f"{name} {has or 'missing'}")
        if has != wanted:
            wrong.append(f"{name}=={wanted}")
    advice = f"pip install {' '.join(wrong)}" if wrong else ""
    yield Finding("packages", "fail" if wrong else "ok", ", ".join(found), advice)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _data(settings: "Settings") -> Iterator[Finding]:
    from crawlog.processes.folder import prepare

    data = settings.run.data.absolute()
    there = next(folder for folder in (data, *data.parents) if folder.exists())
    try:
        if there == data:
            prepare(data)
        elif not os.access(there, os.W_OK):
            raise Misconfigured(f"{data} cannot be made: {there} is read-only\nName another one with --data DIR.")
    except Misconfigured as error:
        told, _, advice = str(error).partition("\n")
        yield Finding("data folder", "fail", told, advice)
        return
    yield Finding("data folder", "ok", str(data) + ("" if there == data else ", not made yet"))
    free = shutil.disk_usage(there).free
    status: Status = "fail" if free < NO_DISK_BYTES else "warn" if free < LOW_DISK_BYTES else "ok"
    advice = "" if status == "ok" else "free some space, or name another folder with --data DIR"
    yield Finding("disk", status, f"{free / (1 << 30):.1f} GiB free", advice)


def _limits(settings: "Settings") -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = settings.fetch.concurrency + FILES_BESIDE_FETCHES
    enough = soft == resource.RLIM_INFINITY or soft >= need
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    advice = "" if enough else f"ulimit -n {need} (up to {most} is allowed), or a lower fetch.concurrency"
    yield Finding(
        "open files", "ok" if enough else "warn", f"ulimit -n is {soft}, a fetch worker may need {need}", advice
    )
    with contextlib.suppress(OSError, ValueError):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _cached_bytes()
        low = free < LOW_MEMORY_BYTES
        advice = "fewer workers, or a lower state.memory_mb and engine.heap_mb" if low else ""
        yield Finding(
            "memory", "warn" if low else "ok", f"{free / (1 << 30):.1f} GiB available, {os.cpu_count()} cores", advice
        )


def _cached_bytes() -> int:
    """Page cache that the kernel can free; 0 if unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("Cached:"):
                return int(line.split()[1]) * 1024
    return 0


def _engine(settings: "Settings") -> Iterator[Finding]:
    """Java and the jars; a user's own cluster needs neither."""
    if settings.kafka.bootstrap:
        return
    from crawlog.streams.engine import find_java

    java = find_java(settings)
    yield Finding("java", "ok", f"{java.version} at {java.path}")
    from crawlog.streams.engine import cache_folder, kafka_version, locked_jars

    folder, jars = cache_folder(settings), locked_jars()
    there = sum((folder / jar.name).is_file() for jar in jars)
    found = f"Apache Kafka {kafka_version()}: {there} of {len(jars)} in {folder}"
    yield Finding("jars", *(("ok", found) if there == len(jars) else ("warn", found, "`crawlog engine fetch`")))


def _browser(settings: "Settings") -> Iterator[Finding]:
    """Chromium, which only JavaScript pages need."""
    from crawlog.streams.settings import browser_version, find_browser, wants_browser

    is_wanted = wants_browser(settings)
    try:
        path = find_browser(settings)
    except Misconfigured as error:
        told, _, advice = str(error).partition("\n")
        bare = settings.model_copy(update={"render": settings.render.model_copy(update={"sandbox": False})})
        with contextlib.suppress(Misconfigured):
            find_browser(bare)
            yield Finding("browser", "fail" if is_wanted else "warn", told, advice)  # there, but for its sandbox
            return
        yield Finding("browser", "fail" if is_wanted else "ok", told, advice if is_wanted else "")
        return
    found = browser_version(path)
    if not found:
        yield Finding("browser", "fail" if is_wanted else "warn", f"{path} does not run", f"{path} --version")
        return
    found = f"{found} at {path}, playwright {_version('playwright')}"
    if settings.render.sandbox:
        yield Finding("browser", "ok", found)
    else:
        advice = "pages of strangers run outside a sandbox: leave render.sandbox=false out, as a user other than root"
        yield Finding("browser", "warn", f"{found}, without a sandbox", advice)


def _deployed_code(settings: "Settings") -> Iterator[Finding]:
    """Its user, where workers run as root."""
    if os.geteuid():
        return
    from crawlog.agents.sandbox import why_root

    told, _, advice = why_root(is_own_user=settings.spider.own_user).partition(". ")
    if told:
        yield Finding("deployed code", "warn", told.removeprefix("code_refused: "), advice)
    elif settings.spider.own_user:
        yield Finding("deployed code", "ok", "runs as a user of its own")
    else:
        advice = "leave spider.own_user=false out, and it runs as a user of its own or not at all"
        yield Finding("deployed code", "warn", "runs as root", advice)


def _cluster(settings: "Settings") -> Iterator[Finding]:
    if not settings.kafka.bootstrap:
        from crawlog.streams.engine import running

        engine = running(settings.run.data)
        if engine is None:
            yield Finding("broker", "ok", "not running; `crawlog run` and `crawlog up` start it")
            return
        settings = engine.point(settings)
    yield from _broker(settings)


def _broker(settings: "Settings") -> Iterator[Finding]:
    from crawlog.streams.cluster import Admin
    from crawlog.streams.log import health

    try:
        view = health.look(Admin(settings))
    except EngineError as error:
        told, _, advice = str(error).partition("\n")
        if not advice or "`crawlog doctor`" in advice:
            advice = "check the address, kafka.security_protocol and the credentials; is the broker up?"
        raise EngineError(f"{told}\n{advice}") from None
    where, found = settings.kafka.bootstrap, health.ailments(view)
    yield Finding("broker", "ok", f"{where}: {len(view.brokers)} broker(s), cluster {view.cluster}")
    yield from (Finding(one.check, "fail", one.found, one.advice) for one in found)
    if view.defaults:
        yield _record_size(settings, view.defaults)
        yield _retention(view.defaults)
    counts = Counter(at.topic for at in view.partitions)
    yield _topics(settings, counts, is_readable=not any(one.stops for one in found))
    weak = health.weaknesses(view, settings.kafka.prefix)
    yield from (Finding("replication", "warn", *line.split(". ", 1)) for line in weak)
    if view.partitions and not weak and not found:
        yield Finding(
            "replication", "ok", f"{min(len(at.in_sync) for at in view.partitions)} replicas in sync at least"
        )


def _exits(settings: "Settings") -> Iterator[Finding]:
    """The addresses of this machine that requests leave by, and the machines that lend theirs."""
    for address in settings.exits.addresses:
        try:
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as bound:
                bound.bind((address, 0))
        except OSError as error:
            advice = "give this machine the address (`ip address add`), or take it out of exits.addresses"
            yield Finding("exits", "fail", f"address {address}: {error.strerror}", advice)
    from crawlog.streams.log import has_topics

    from .fleet_workers import list_workers

    if not settings.kafka.bootstrap or not has_topics(settings):
        return  # the local engine listens on loopback only

    for name, place in (found for worker in list_workers(settings) for found in worker.exits.items()):
        at = urlsplit(f"//{place}")
        try:
            socket.create_connection((at.hostname or "", at.port or 0), REACHED_S).close()
        except (OSError, ValueError) as error:
            advice = "open its port to the fetch workers, or set exits.listen and exits.advertised there"
            yield Finding("exits", "warn", f"{name} at {place} is not reached from here: {error}", advice)
        else:
            yield Finding("exits", "ok", f"{name} at {place}")


def _record_size(settings: "Settings", configs: Mapping[str, str]) -> Finding:
    ours, theirs = settings.kafka.max_record_bytes, int(configs.get("message.max.bytes") or 0)
    fetched = int(configs.get("replica.fetch.max.bytes") or ours)
    found = f"ours {ours}, the brokers' default {theirs}"
    if theirs >= ours or not theirs:
        return Finding("record size", "ok", found)
    advice = (
        f"crawlog's topics set max.message.bytes={ours} themselves; where that is refused, lower kafka.max_record_bytes"
    )
    return Finding("record size", "warn", found + f", replica.fetch.max.bytes {fetched}", advice)


def _retention(configs: Mapping[str, str]) -> Finding:
    minutes = int(configs.get("offsets.retention.minutes") or 0)
    found = (
        f"offsets of an idle group are kept {f'for {minutes // 1440} days' if minutes < CENTURY_MIN else 'for good'}"
    )
    if minutes > WEEK_MIN or not minutes:
        return Finding("group offsets", "ok", found)
    return Finding(
        "group offsets",
        "warn",
        found,
        "a crawl paused for longer parses its pages again (results stay unique); raise offsets.retention.minutes",
    )


def _topics(settings: "Settings", counts: Mapping[str, int], *, is_readable: bool) -> Finding:
    from crawlog.streams.log import TOPIC_KINDS, partition_count

    prefix, wanted = settings.kafka.prefix, settings.kafka.partitions
    has = {kind.name: counts.get(prefix + kind.name, 0) for kind in TOPIC_KINDS if kind.split}
    missing = [prefix + kind.name for kind in TOPIC_KINDS if prefix + kind.name not in counts]
    if len(missing) == len(TOPIC_KINDS):
        return Finding("topics", "ok", f"none yet with the prefix {prefix!r}; the first crawl creates them")
    found = ", ".join(f"{prefix}{name} {count}" for name, count in has.items()) + " partitions"
    with contextlib.suppress(EngineError):
        try:
            if is_readable:
                partition_count(settings)
        except Misconfigured as error:
            return Finding("topics", "fail", found, str(error))
    present = {count for count in has.values() if count}
    if len(present) > 1:
        return Finding("topics", "fail", found, "they must be equal; use another prefix with -s kafka.prefix=NAME")
    if present and present != {wanted}:
        count = present.pop()
        return Finding("topics", "fail", found, f"-s kafka.partitions={count}: it is fixed when the topics are created")
    if missing:
        advice = "`crawlog run` and `crawlog up` create what is missing"
        return Finding("topics", "warn", f"{found}; missing: {', '.join(missing)}", advice)
    return Finding("topics", "ok", found)


CHECKS: tuple[Check, ...] = (_python, _packages, _data, _limits, _browser, _deployed_code, _engine, _cluster, _exits)
