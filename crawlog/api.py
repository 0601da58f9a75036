"""`crawlog.crawl`: `crawlog run` as a function.

    await crawl(urls, spider=…, settings=…)
      │ checks what it was given, as the command line does
      ▼
    python -m crawlog.commands.run_process      the run, in a process of its own
      │ standard input: the order    standard error: what it says, for the log `crawlog`
      ▼
    standard output: the Summary, or the error that crawl() raises

A process of its own, since a run hears signals and adopts its workers, which both belong to a main thread. The kernel
ends it when the caller's process ends, and the next run of the same job goes on.
"""

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crawlog.commands.run_process import Ended
from crawlog.commands.summary import Summary
from crawlog.streams import errors
from crawlog.streams.errors import CrawlError, Misconfigured
from crawlog.streams.settings import Settings, Sources, resolve, to_environ

if TYPE_CHECKING:
    from crawlog.commands.order import Order
    from crawlog.streams.spiders import Loaded, Spider

__all__ = ["Summary", "crawl"]

STOP_S = 10.0
"""How long a cancelled crawl may take to end; a clean stop takes at most 5 s."""

MAX_LINE_BYTES = 1 << 20
"""Longest line that the run may say."""

log = logging.getLogger("crawlog")


async def crawl(
    urls: Iterable[str] = (),
    *,
    spider: "type[Spider] | str | Path | None" = None,
    settings: Settings | Mapping[str, object] | None = None,
    output: str | Path | None = None,
    job: str | None = None,
    fresh: bool = False,
) -> Summary:
    """Crawls until the job is finished, as `crawlog run` does; the same call again goes on where the crawl was.

    A cancelled crawl stops cleanly within 5 s, and the next call goes on. What `crawlog run` writes to standard error
    goes to the logger `crawlog`.

    Args:
        urls: The seeds; without any, the spider's `start_urls`.
        spider: A subclass of `crawlog.Spider`, or `FILE.py[:Class]`. A class must stand at the top of its file, which
            the workers import: a script that calls `crawl` does so below `if __name__ == "__main__":`.
        settings: By dotted name, `{"politeness.delay_s": 2}`: stronger than the spider's, the environment and
            `crawlog.toml`. A `Settings` is taken as it is.
        output: File of the results: .jsonl, .json or .csv, or what an installed sink writes.
        job: Name of the job; without it a hash of seeds and spider.
        fresh: Begins the job again from its seeds, in a new epoch.

    Returns: How the run ended: also where some URLs could not be fetched, or some records not be handled.

    Raises:
        Misconfigured: A setting, a file or an argument is wrong.
        EngineError: Kafka cannot be started or reached, or its log is damaged.
        CrawlError: Any other error of crawlog.
    """
    from crawlog.cli import arguments
    from crawlog.processes.folder import prepare

    loaded = arguments.spider(_named(spider)) if spider is not None else None
    in_force = _settings(settings, loaded)
    if output is not None and str(output) == "-":
        raise Misconfigured("output='-': name a file; standard output is the script's own")
    named = str(output) if output is not None else None
    in_force, order = arguments.ordered(in_force, list(urls), output=named, loaded=loaded, job=job, fresh=fresh)
    prepare(in_force.run.data)
    return await _run(in_force, order)


def _named(spider: "type[Spider] | str | Path") -> str:
    """`FILE.py:Class` of a spider.

    Raises: Misconfigured: the class has no file that a worker could import.
    """
    if not isinstance(spider, type):
        return str(spider)
    try:
        file = inspect.getfile(spider)
    except (OSError, TypeError):
        raise Misconfigured(
            f"spider {spider.__name__}: its class stands in no file, so no worker can import it.\n"
            "Write it to FILE.py and give spider='FILE.py'."
        ) from None
    return f"{file}:{spider.__qualname__}"


def _settings(given: Settings | Mapping[str, object] | None, loaded: "Loaded | None") -> Settings:
    if isinstance(given, Settings):
        return given
    return resolve(Sources(flags=dict(given or {}), spider=loaded.spider.settings if loaded else {})).settings


async def _run(settings: Settings, order: "Order") -> Summary:
    """The run in a process of its own.

    Raises: CrawlError: the error that ended it.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "crawlog.commands.run_process", str(os.getpid())),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ | to_environ(settings),
        start_new_session=True,  # a Ctrl-C in the terminal is for the script, which cancels
        limit=MAX_LINE_BYTES,
    )
    ending = asyncio.ensure_future(_talk(process, msgspec.json.encode(order)))
    try:
        answer = await asyncio.shield(ending)
    except asyncio.CancelledError:
        await _stop(process, ending)
        raise
    if not answer:
        raise CrawlError(f"the run ended with code {process.returncode}, and said no more; the log `crawlog` has why")
    return _outcome(msgspec.json.decode(answer, type=Ended))


async def _talk(process: Process, order: bytes) -> bytes:
    """Gives the order, logs what the run says, returns its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(ConnectionError):  # it has ended: its answer says why
        process.stdin.write(order)
        await process.stdin.drain()
    process.stdin.close()
    reading = asyncio.ensure_future(process.stdout.read())
    async for line in process.stderr:
        log.info("%s", line.decode(errors="replace").rstrip("\n"))
    await process.wait()
    return await reading


async def _stop(process: Process, ending: "asyncio.Future[bytes]") -> None:
    """Stops the run as Ctrl-C does; kills it where that takes too long, or the caller is cancelled once more."""
    try:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await asyncio.wait([ending], timeout=STOP_S)
    finally:
        if process.returncode is None:
            process.kill()


def _outcome(ended: Ended) -> Summary:
    """The summary. Raises: CrawlError: the run ended with one."""
    if ended.summary is not None:
        return ended.summary
    kind = getattr(errors, ended.error, CrawlError)
    error: CrawlError = kind.__new__(kind)  # some take other arguments than their message
    error.args = (ended.message,)
    raise error
