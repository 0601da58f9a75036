"""The topic producer: URLs from a file, standard input or the command line become founds in crawl.urls.

Seeds are read twice: first for the names of the job's scope, which its record must hold before the first seed is sent,
then to be sent, in batches per partition. A line that is no URL is told with its number and counted; the others go on.
"""

import gzip
import os
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Self, cast

import msgspec

from crawlog.schemas.codec import decoded
from crawlog.schemas.control import JobCopy, Join
from crawlog.schemas.progress import Progress
from crawlog.schemas.urls import DEFAULT_JOB, MAX_URL_BYTES, FoundUrl, UrlsRecord, decode, encode
from crawlog.streams import crash_points
from crawlog.streams.errors import Misconfigured
from crawlog.streams.fetch import Sown
from crawlog.streams.http import without_login
from crawlog.streams.log import (
    SeedBatch,
    SeedBatches,
    Topics,
    control_entries,
    kept_settings,
    log_bounds,
    partition_count,
    partition_count_if_any,
    read_partitions,
    resolve_spec,
    write_control,
    write_job,
    write_joins,
    write_names,
)
from crawlog.streams.url import Canonicaliser, Places, plain, scope_name, serialise

if TYPE_CHECKING:
    from crawlog.schemas.urls import RequestRules
    from crawlog.streams.log import Producer
    from crawlog.streams.settings import Settings

MAX_LINE_BYTES = MAX_URL_BYTES + 4096
"""Longest line taken: a URL and the JSON around it; a longer one is bad, bytes."""

MAX_NAMES = 1_000
"""Scope names that a job record lists, 260 kB at most; further ones join the job. Every partition has the record, with
each revision, and every fold and parse worker holds its names."""

TOLD = 20
"""Bad lines told one by one; the others are counted."""

POLL_EVERY = 8
"""Batches between two polls: 4,000 URLs, a few hundredths of a second."""

FLUSH_S = 10.0
"""After each of these without the last acknowledgements the user is told what is waited for, seconds."""

AHEAD_LOOK_S = 0.1
"""Longest wait for a report of the workers, while seeds wait for them."""

TELL_AHEAD_S = 30.0
"""Time between two lines about seeds that wait for the workers, seconds."""

SPOOL_BYTES = 8 << 20
"""Standard input is kept in memory up to this size, then in a temporary file, bytes."""

LOGIN = "-s fetch.logins=https://USER:PASSWORD@HOST is for that, where the workers run"

COMMENT = ord("#")
SITEMAP = "sitemap:"
"""Begins an argument that stands for all that a sitemap lists."""

BRACE = ord("{")
"""First byte of a JSON line."""

Report = Callable[[str], None]
"""Tells the user one line."""

Look = Callable[[float], Iterable[Progress]]
"""Waits at most so many seconds for reports of the workers; gives the newest of each partition of crawl.urls."""


class Seed(msgspec.Struct, frozen=True):
    """A JSON line. Fields that it has beside these are not ours and are left alone."""

    url: str
    depth: Annotated[int, msgspec.Meta(ge=0)] = 0
    priority: Annotated[int, msgspec.Meta(ge=-128, le=127)] = 0


class Seeded(msgspec.Struct, frozen=True):
    """What became of the lines.

    Attributes:
        count: URLs sent and acknowledged.
        bad: Lines that hold no URL.
        names: Their scope names, the first `MAX_NAMES`.
    """

    count: int
    bad: int
    names: frozenset[str]


_seed = msgspec.json.Decoder(Seed)


class Source:
    """Seeds that can be read more than once: files, `-` for standard input, URLs. Use it in a `with`.

    Args:
        arguments: As on the command line. A pipe (`<(zcat x.gz)`, `/dev/stdin`) is copied aside at once, as it can be
            read only once.
        stdin: What `-` stands for; copied aside too.
        collect: Gives the URLs that `sitemap:URL` stands for, as lines; without it that is no seed.

    Raises: Misconfigured: a file that cannot be read, or what is neither a file nor a URL.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        stdin: BinaryIO | None = None,
        collect: Callable[[str], BinaryIO] | None = None,
    ) -> None:
        self._arguments = arguments
        self._spools: dict[str, BinaryIO] = {}
        self._collected: dict[str, BinaryIO] = {}
        for argument in arguments:
            if collect is not None and argument.startswith(SITEMAP):
                self._collected[argument] = collect(argument.removeprefix(SITEMAP))
            elif argument == "-":
                self._spools[argument] = _spooled(stdin or sys.stdin.buffer)
            elif "://" not in argument and (spool := _readable(Path(argument))) is not None:
                self._spools[argument] = spool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for spool in (*self._spools.values(), *self._collected.values()):
            spool.close()

    def __str__(self) -> str:
        return ", ".join(self._arguments[:3]) + (", …" if len(self._arguments) > 3 else "")

    def parts(self) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Each part's name and lines, numbered from 1; URLs given as arguments are one part."""
        given = [
            argument.encode("utf-8", "surrogateescape")  # what is no UTF-8 is a bad line, as in a file
            for argument in self._arguments
            if "://" in argument and argument not in self._collected
        ]
        if given:
            yield "argument", given
        for argument in self._arguments:
            if argument in self._spools:
                self._spools[argument].seek(0)
                name = "standard input" if argument == "-" else argument
                yield name, _whole(name, _lines(_unpacked(self._spools[argument])))
            elif argument in self._collected:
                self._collected[argument].seek(0)
                yield argument, _lines(self._collected[argument])
            elif "://" not in argument:
                with Path(argument).open("rb") as file:
                    yield argument, _whole(argument, _lines(_unpacked(file)))

    def first(self) -> str:
        """The first URL, without a login; empty where no line holds one."""
        for _, lines in self.parts():
            for line in lines:
                text = line.strip()
                if text and text[0] != COMMENT:
                    with suppress(ValueError):
                        return plain(serialise(_found(text, str).url))
        return ""


class Sower:
    """Sends seeds of one job that its record has gone before.

    Args:
        count: Partitions of crawl.urls.
        copy: The job as it stands in crawl.control.
        report: Tells the user what is wrong with a line.
        look: How far the workers are; None where there are none.

    Attributes:
        count: URLs so far.
    """

    def __init__(  # where seeds go, and who hears of it
        self,
        producer: "Producer",
        topics: Topics,
        count: int,
        copy: JobCopy,
        report: Report,
        look: Look | None = None,
    ) -> None:
        self._producer = producer
        self._topic = topics.urls
        self._copy = copy
        self._report = report
        self._look = look
        self._sown = Sown()
        self._told_at = time.monotonic()
        self._canonical = Canonicaliser(copy.spec.canonical).canonical
        self._place = Places(count).of
        self._batches = SeedBatches()
        self._names: dict[str, str] = {}
        self._sent = self.count = self._bad = self._logins = 0

    def sow(self, part: str, lines: Iterable[bytes]) -> None:
        """Send the URLs of some lines; full batches leave at once."""
        canonical, place, add, names = self._canonical, self._place, self._batches.add, self._names
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text[0] == COMMENT:
                continue
            try:
                found = _found(text, canonical)
            except ValueError as error:
                self._refuse(part, number, text, error)
                continue
            if b"@" in text:
                self._tell_of_login(part, number, text)
            at = place(found.url)
            if at.host not in names:
                self._name(at.host, scope_name(self._copy.spec.scope.kind, at))
            batch = add(found, at)
            self.count += 1
            if batch is not None:
                self._send(batch)

    def finish(self) -> Seeded:
        """Send what is left and wait, as long as it takes, until everything is acknowledged."""
        for batch in self._batches.rest():
            self._send(batch)
        while not self._producer.flush(FLUSH_S):
            self._report(f"waiting for Kafka: {self._producer.outstanding} records are not acknowledged yet")
        crash_points.point("seeds.acknowledged")
        if self._bad > TOLD:
            self._report(f"{self._bad - TOLD} more lines are no URLs")
        if self._logins > 1:
            self._report(f"{self._logins - 1} more URLs had logins, left out as well")
        return Seeded(self.count, self._bad, frozenset(self._names.values()))

    def _send(self, batch: SeedBatch) -> None:
        crash_points.point("seeds.sending")
        record = UrlsRecord(job=self._copy.job, epoch=self._copy.epoch, urls=batch.urls)
        on_delivery = None
        if self._look is not None:
            self._sown.sent(batch.partition, len(batch.urls))
            on_delivery = partial(self._sown.acknowledged, len(batch.urls))
        self._producer.send(
            self._topic, encode(record), key=batch.key, partition=batch.partition, on_delivery=on_delivery
        )
        self._sent += 1
        if self._sent % POLL_EVERY == 0:
            self._producer.poll()
            if self._look is not None:
                self._keep_pace(self._look)

    def _keep_pace(self, look: Look) -> None:
        """Wait while living workers have many seeds to fold: dones wait behind them, and a restore folds them first."""
        self._sown.heard(look(0.0), time.monotonic())
        while self._sown.is_far_ahead(time.monotonic()):
            if time.monotonic() - self._told_at >= TELL_AHEAD_S:
                self._told_at = time.monotonic()
                self._report(f"{self.count:,} URLs are read; they go at the pace at which the workers take them")
            self._producer.poll()
            self._sown.heard(look(AHEAD_LOOK_S), time.monotonic())

    def _name(self, host: str, name: str) -> None:
        if len(self._names) < MAX_NAMES:
            self._names[host] = name

    def _tell_of_login(self, part: str, number: int, text: bytes) -> None:
        """Say that the user and password in a seed are left out, if there are any: no canonical URL has them."""
        href = serialise(_found(text, str).url)
        if without_login(href)[0] != href:
            self._logins += 1
            if self._logins == 1:
                self._report(f"{part}:{number}: the login in this URL is left out, as the log would keep it; {LOGIN}")

    def _refuse(self, part: str, number: int, text: bytes, error: ValueError) -> None:
        self._bad += 1
        if self._bad <= TOLD:
            self._report(f"{part}:{number}: {_why(text, error)}")


def seed_urls(sower: Sower, urls: Iterable[str]) -> Seeded:
    """Send URLs of a job whose record is in the log; returns when they are acknowledged."""
    sower.sow("argument", (url.encode() for url in urls))
    return sower.finish()


def seed_file(sower: Sower, path: Path) -> Seeded:
    """Send the URLs in a file, text or JSON lines, of a job whose record is in the log."""
    with path.open("rb") as file:
        sower.sow(str(path), _lines(file))
        return sower.finish()


def plant(  # noqa: PLR0913  # all that a crawl begins with
    settings: "Settings",
    producer: "Producer",
    job: str,
    source: Source,
    *,
    spider: str = "",
    requests: "RequestRules | None" = None,
    report: Report,
    look: Look | None = None,
) -> Seeded:
    """Seed a job, new or known: its record or the new names first, acknowledged, then the URLs.

    Args:
        requests: How a new job's URLs are asked for; None for the settings.
        look: How far the workers are, to go at their pace; None where there are none.

    Raises: Misconfigured: there is no URL in `source`; nothing was written.
    """
    topics = Topics(settings.kafka.prefix)
    said = control_entries(settings, topics, joins=True)
    copy = said.get(f"job/{job}".encode())
    kind = copy.spec.scope.kind if isinstance(copy, JobCopy) else settings.scope.kind
    names = scope_names(source, kind)
    if not isinstance(copy, JobCopy):
        listed = sorted(names)[:MAX_NAMES]
        copy = write_job(settings, producer, topics, job, resolve_spec(settings, spider, listed, requests))
    elif line := kept_settings(job, copy.spec, settings, requests):
        report(line)
    if f"finished/{job}".encode() in said:
        write_control(producer, topics, [copy])  # workers report the counts of an old job again
    count = partition_count(settings)
    if kind != "any":
        names.difference_update(copy.spec.scope.names)
        write_names(producer, topics, copy, names, count)
        joins = (entry for entry in said.values() if isinstance(entry, Join) and entry.job == job)
        write_joins(producer, topics, job, names.difference(*(entry.names for entry in joins)))
    sower = Sower(producer, topics, count, copy, report, look)
    try:
        for part, lines in source.parts():
            sower.sow(part, lines)
        return sower.finish()
    except KeyboardInterrupt:
        report(
            f"interrupted: {sower.count:,} URLs are read, some not sent; the same command again adds what is missing"
        )
        raise


@contextmanager
def kept_seeds(settings: "Settings", topics: Topics, job: str) -> Iterator[Path]:
    """A file of all seeds that a job was ever given, as the log has them, as long as it is needed.

    Raises: Misconfigured: there are none.
    """
    known_urls: set[bytes] = set()
    with tempfile.NamedTemporaryFile(prefix="seeds-", suffix=".jsonl") as file:
        every = log_bounds(settings, topics.urls, list(range(partition_count_if_any(settings))))
        for message in read_partitions(settings, topics.urls, every):
            for found in _seeds_of(message.value(), job):
                if found.url.encode() not in known_urls:
                    known_urls.add(found.url.encode())
                    file.write(msgspec.json.encode(Seed(found.url, found.depth, found.priority)) + b"\n")
        if not known_urls:
            raise Misconfigured(f"the log holds no seeds of job {job}; give the URLs that it starts with.")
        file.flush()
        yield Path(file.name)


def old_seeds(settings: "Settings", prefix: str, job: str) -> AbstractContextManager[Path]:
    """`kept_seeds` of the log of another prefix, whose topics may have grown.

    Raises: Misconfigured: it is the log that the settings name, or there is none.
    """
    if prefix == settings.kafka.prefix:
        raise Misconfigured(f"--from-log {prefix} is the log that the seeds would go to: give -s kafka.prefix=NEW.")
    old = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"prefix": prefix})})
    if not partition_count_if_any(old):
        raise Misconfigured(f"--from-log {prefix}: there is no topic {Topics(prefix).urls}; `crawlog doctor` names all")
    return kept_seeds(old, Topics(prefix), job)


def _seeds_of(value: bytes | None, job: str) -> Iterator[FoundUrl]:
    try:
        record = decode(value)
    except ValueError:
        return
    if (record.job or DEFAULT_JOB) == job:
        yield from (found for found in record.urls or () if found.source == "seed")


def scope_names(source: Source, kind: str) -> set[str]:
    """The scope names of all seeds; only origins are parsed, each once, so that a million lines take a second.

    Raises: Misconfigured: no line holds a URL; the message says what is wrong with the first one.
    """
    names: set[str] = set()
    known_origins: set[bytes] = set()
    place = Places(1).of
    first = ""
    for part, lines in source.parts():
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text[0] == COMMENT:
                continue
            try:
                origin = _origin(text)
                if origin not in known_origins:
                    names.add(scope_name(kind, place(serialise(origin.decode()))))
                    known_origins.add(origin)
            except ValueError as error:
                first = first or f"{part}:{number}: {_why(text, error)}"
    if not names:
        raise Misconfigured(f"no URL in {source}" + (f": {first}" if first else ""))
    return names


def _origin(text: bytes) -> bytes:
    """The URL on a line up to its path, not parsed: enough to know whose it is."""
    url = decoded(_seed, text).url.encode() if text[0] == BRACE else text
    end = url.find(b"/", len(b"https://"))
    return url if end < 0 else url[:end]


def _found(text: bytes, canonical: Callable[[str], str]) -> FoundUrl:
    """The seed on a line. Raises: ValueError: there is none."""
    if text[0] == BRACE:
        seed = decoded(_seed, text)
        if len(seed.url) > MAX_URL_BYTES:
            raise ValueError("too long")
        return FoundUrl(canonical(seed.url), seed.depth, seed.priority)
    if len(text) > MAX_URL_BYTES:
        raise ValueError("too long")
    if b" " in text or b"\t" in text or b"\r" in text:
        raise ValueError("more than a URL on the line; depth and priority need JSON lines")
    return FoundUrl(canonical(text.decode()))


def _why(text: bytes, error: ValueError) -> str:
    shown = text[:80].decode("utf-8", "replace")
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {shown!r}"
    if isinstance(error, msgspec.MsgspecError):
        return f"{error}: {shown!r}"
    if b"://" not in text and b"." in text and text[0] != BRACE:
        return f"not a URL: {shown!r}; perhaps https://{shown}"
    return str(error) if shown[:40] in str(error) else f"{error}: {shown!r}"


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines without end; a byte order mark is skipped, and an endless line is one bad line, not all memory."""
    line = file.readline(MAX_LINE_BYTES).removeprefix(b"\xef\xbb\xbf")
    while line:
        yield line
        while len(line) >= MAX_LINE_BYTES - 3 and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)  # the rest of a line that was refused
        line = file.readline(MAX_LINE_BYTES)


def _whole(part: str, lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines, or a clear word where a gzipped file is damaged: its first reading, before anything is sent, tells."""
    try:
        yield from lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Misconfigured(f"{part} is damaged: {error}; nothing was sent") from None


def _unpacked(file: BinaryIO) -> BinaryIO:
    """A file, decompressed where its first bytes say gzip."""
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb")) if is_gzip else file


def _spooled(stdin: BinaryIO) -> BinaryIO:
    spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115  # the source closes it
    shutil.copyfileobj(stdin, spool)
    return spool  # type: ignore[return-value]  # a binary file in all but name


def _readable(path: Path) -> BinaryIO | None:
    """A copy of what can be read only once; of what can be read again none is needed."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return _spooled(file)
            file.read(1)
            return None
    except OSError as error:
        hint = "" if path.exists() else "; a URL starts with http:// or https://"
        raise Misconfigured(f"cannot read seeds from {path}: {error.strerror}{hint}") from None
