"""`crawlog.crawl`: `crawlog run` as a function.

    await crawl(urls, spider=…, settings=…)
      │ checks its arguments as the command line does
      ▼
    python -m crawlog.api PID               the run, in a process of its own
      │ standard input: the request   standard error: its messages, for the logger `crawlog`
      ▼
    standard output: the Summary, or the error that crawl() raises

A run handles signals and adopts its workers; both need a main thread, so it has a process of its own. The kernel kills
this process when the caller's process ends; the next run of the same job goes on.
"""

import asyncio
import contextlib
import inspect
import json
import logging
import os
import signal
import sys
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crawlog.jobs.summary import Summary
from crawlog.streams import errors
from crawlog.streams.errors import CrawlError, Misconfigured
from crawlog.streams.settings import Settings, Sources, resolve, to_environ

if TYPE_CHECKING:
    from crawlog.commands.named_spider import NamedSpider, Pairs
    from crawlog.jobs.request import JobRequest, LocalParts
    from crawlog.streams.spiders import Spider

__all__ = ["Summary", "crawl"]

STOP_S = 10.0  # How long a cancelled crawl may take to end; a clean stop takes at most 5 s

MAX_LINE_BYTES = 1 << 20  # Longest line that the run may write to standard error

log = logging.getLogger("crawlog")


class Ended(msgspec.Struct):
    """How a run ended: with a summary, or with an error of crawlog.

    Attributes:
        error: The name of the error's class.
    """

    summary: Summary | None = None
    error: str = ""
    message: str = ""


async def crawl(
    urls: Iterable[str] = (),
    *,
    spider: "type[Spider] | str | Path | None" = None,
    settings: Settings | Mapping[str, object] | None = None,
    output: str | Path | None = None,
    job: str | None = None,
    fresh: bool = False,
    arguments: Mapping[str, str] | None = None,
) -> Summary:
    """Crawls until the job is finished, as `crawlog run` does. A repeated call continues the crawl.

    It has workers of its own: a data folder that `crawlog up` or another crawl holds is refused.

    A cancelled crawl stops cleanly within 5 s; the next call continues it. Messages that `crawlog run` writes to
    standard error go to the logger `crawlog`.

    Args:
        urls: The seeds; by default the spider's `start_urls`.
        spider: A subclass of `crawlog.Spider`, or a name as `--spider` takes it. A class must be at the top level of
            its file, because workers import the file. So a script must call `crawl` below
            `if __name__ == "__main__":`.
        settings: Values by dotted name, `{"politeness.delay_s": 2}`; Scrapy's by upper-case name. They override those
            of the spider, the environment and `crawlog.toml`. A `Settings` object is used as it is.
        output: Result file: .jsonl, .json, .csv, or a format of an installed sink.
        job: Name of the job; by default a hash of seeds and spider.
        fresh: Begins the job again from its seeds, in a new epoch.
        arguments: Arguments of the spider, as `-a` gives them.

    Returns: How the run ended. URLs that failed, and records that could not be handled, raise no error.

    Raises:
        Misconfigured: A setting, a file or an argument is wrong.
        EngineError: Kafka cannot be started or reached, or its log is damaged.
        CrawlError: Any other error of crawlog.
    """
    from crawlog.cli import arguments as checks
    from crawlog.processes.folder import prepare
    from crawlog.streams.spiders import check_crawl

    check_crawl()
    if isinstance(urls, str):  # which is an iterable of texts, too
        raise Misconfigured(f"urls = {urls!r}: give a list: [{urls!r}]")
    own, scrapy = _scrapy_apart(settings)
    given = [f"{name}={value}" for name, value in (arguments or {}).items()]
    file = _named(spider) if spider is not None else None
    named = await asyncio.to_thread(checks.spider, file, given, scrapy, lambda: _settings(own, None))
    in_force = _settings(own, named)
    if output is not None and str(output) == "-":
        raise Misconfigured("output='-': name a file; standard output is the script's own")
    outputs = [str(output)] if output is not None else []
    in_force, request, parts = checks.requested(
        in_force, list(urls), outputs=outputs, spider=named, job=job, fresh=fresh
    )
    prepare(in_force.run.data)
    return await _run(in_force, request, parts)


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


def _scrapy_apart(
    given: Settings | Mapping[str, object] | None,
) -> "tuple[Settings | Mapping[str, object] | None, Pairs]":
    """The settings without Scrapy's, and these as `-s` has them. Raises: Misconfigured: a value has no such form."""
    from crawlog.commands.named_spider import is_of_scrapy

    if given is None or isinstance(given, Settings):
        return given, ()
    scrapy = tuple(sorted((key, _as_text(key, value)) for key, value in given.items() if is_of_scrapy(key)))
    return {key: value for key, value in given.items() if not is_of_scrapy(key)}, scrapy


def _as_text(name: str, value: object) -> str:
    """A setting of Scrapy's as its command line takes it. Raises: Misconfigured: a text cannot say it."""
    if isinstance(value, set | frozenset):
        return ",".join(sorted(map(str, value)))  # its order differs from process to process
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    try:
        if value is not None and not isinstance(value, type):
            return json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)
    except TypeError:  # there is a class in it, say
        pass
    raise Misconfigured(f"{name} = {value!r:.100}: it travels as text; set it in the spider's custom_settings")


def _settings(given: Settings | Mapping[str, object] | None, named: "NamedSpider | None") -> Settings:
    if isinstance(given, Settings):
        return given
    return resolve(Sources(flags=dict(given or {}), spider=named.facts.settings if named else {})).settings


async def _run(settings: Settings, request: "JobRequest", parts: "LocalParts") -> Summary:
    """Runs the request in a process of its own.

    Raises: CrawlError: the error that ended it.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "crawlog.api", str(os.getpid())),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ | to_environ(settings),
        start_new_session=True,  # the terminal sends Ctrl-C to the script alone, which cancels
        limit=MAX_LINE_BYTES,
    )
    ending = asyncio.ensure_future(_talk(process, msgspec.json.encode((request, parts))))
    try:
        answer = await asyncio.shield(ending)
    except BaseException:  # cancelled, or a message that cannot be read: no run is left behind
        await _stop(process, ending)
        raise
    if not answer:
        raise CrawlError(
            f"the run ended with code {process.returncode}, and said no more; the log `crawlog` may have why."
            " Nothing is lost: the same call goes on."
        )
    return _outcome(msgspec.json.decode(answer, type=Ended))


async def _talk(process: Process, request: bytes) -> bytes:
    """Sends the request, logs the run's messages, returns its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(ConnectionError):  # the run has ended: its answer says why
        process.stdin.write(request)
        await process.stdin.drain()
    process.stdin.close()
    reading = asyncio.ensure_future(process.stdout.read())
    async for line in process.stderr:
        log.info("%s", line.decode(errors="replace").rstrip("\n"))
    await process.wait()
    return await reading


async def _stop(process: Process, ending: "asyncio.Future[bytes]") -> None:
    """Stops the run with SIGTERM; kills it if it takes longer than `STOP_S`, or if the caller is cancelled again."""
    try:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await asyncio.wait([ending], timeout=STOP_S)
    finally:
        if process.returncode is None:
            process.kill()


def _outcome(ended: Ended) -> Summary:
    """The summary. Raises: CrawlError: the run ended with an error."""
    if ended.summary is not None:
        return ended.summary
    kind = getattr(errors, ended.error, CrawlError)
    error: CrawlError = kind.__new__(kind)  # without __init__, which may take other arguments than the message
    error.args = (ended.message,)
    raise error


def main() -> None:
    """Runs the request on standard input until it is finished or SIGTERM comes; dies with its parent, the caller.

    Its settings come from the environment. Standard output gets one `Ended`, standard error all other text.
    """
    from crawlog import outcome
    from crawlog.jobs.live import Lines
    from crawlog.jobs.request import JobRequest, LocalParts
    from crawlog.jobs.run import run
    from crawlog.streams.kernel import die_with
    from crawlog.streams.settings import NO_FILE, load
    from crawlog.streams.spiders import SpiderFacts
    from crawlog.terminal import tell

    die_with(int(sys.argv[1]))
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    try:
        with outcome.stopped_by_signals():
            given = tuple[JobRequest, tuple[tuple[str, ...], SpiderFacts | None]]
            request, parts = msgspec.json.decode(sys.stdin.buffer.read(), type=given)
            ended = Ended(run(load(config=NO_FILE), request, LocalParts(*parts), Lines(sys.stderr)))
    except CrawlError as error:
        ended = Ended(error=type(error).__name__, message=str(error))
    except Exception as error:  # noqa: BLE001  # a bug: the caller's process gets it as an error of crawlog
        for line in "".join(traceback.format_exception(error)).splitlines():
            tell(line)
        ended = Ended(error="CrawlError", message=f"internal error: {type(error).__name__}: {error}")
    out.write(msgspec.json.encode(ended))
    out.flush()
    os._exit(0)  # skips the cleanup of this process: its answer is written


if __name__ == "__main__":
    main()
