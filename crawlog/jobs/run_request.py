"""What `run` is asked for: seeds, spider and files; and the default name of its job."""

import heapq
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

import msgspec
import xxhash

if TYPE_CHECKING:
    from crawlog.agents.seed import Source
    from crawlog.streams.job_spec import JobSpider
    from crawlog.streams.settings import Settings

TOLD = 3  # Refused seeds that are named at most

CHUNK = 200_000  # Seeds whose name is made in memory, some 40 MB

_LINE = msgspec.json.Decoder(str)
_OPENS = "; -s network.allow_private=true has it asked, with --fresh once the job has refused it"


def job_name(seeds: Iterable[str], spider: str = "", args: Iterable[tuple[str, str]] = ()) -> str:
    """The default name of a job: equal seeds in any order, with the same spider and arguments."""
    digest = xxhash.xxh3_64()
    with ExitStack() as files:
        for seed in _sorted_once((seed.strip() for seed in seeds), files):
            digest.update(f"{seed}\n".encode())
    rest = [spider, *(f"{name}={value}" for name, value in sorted(args))]
    digest.update("\n".join(rest).encode())
    return "job-" + digest.hexdigest()[:10]


def _sorted_once(lines: Iterable[str], files: ExitStack) -> Iterator[str]:
    """The different lines, sorted. Beyond `CHUNK` they lie in temporary files, which `files` closes."""
    chunks: list[Iterable[str]] = []
    lines = iter(lines)
    while chunk := list(islice(lines, CHUNK)):
        own = sorted(set(chunk))
        if len(chunk) == CHUNK:
            file = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
            file.writelines(msgspec.json.encode(line) + b"\n" for line in own)  # a line may hold any character
            file.seek(0)
            chunks.append(map(_LINE.decode, file))
        else:
            chunks.append(own)
    return (line for line, _ in groupby(heapq.merge(*chunks)))


@dataclass
class RunRequest:
    """The arguments of a run.

    Attributes:
        job: The name as given; None to make one from seeds and spider.
        spider: As the job's record names it, empty for the default spider; its folder does not affect the job's name.
        outputs: Files of the results, addresses of stores, `-` for standard output.
        fresh: Crawl again in a new epoch.
        spider_hash: Hash of the spider's code; empty for the default spider.
        args, scrapy: Arguments of the spider, and settings of Scrapy.
        starts: Whether the spider's `start` gives the first requests, as no seeds were given.
        pipelines: Whether items pass pipelines before they are rows.
        dumps_stats: Whether Scrapy's stats are shown at the end.
        notes: Lines about the spider that are said first.
        accepts_skipped: Whether records stay unread that another program had a group skip.
    """

    seeds: Sequence[str] = ()
    seeds_file: Path | None = None
    spider: str = ""
    job: str | None = None
    outputs: tuple[str, ...] = ()
    fresh: bool = False
    spider_hash: str = ""
    args: tuple[tuple[str, str], ...] = ()
    scrapy: tuple[tuple[str, str], ...] = ()
    starts: bool = False
    pipelines: bool = False
    dumps_stats: bool = False
    notes: tuple[str, ...] = ()
    accepts_skipped: bool = False

    def name(self) -> str:
        """The job's name."""
        if self.job:
            return self.job
        spider = Path(self.spider).name
        if not self.seeds_file or self.source is None:
            return job_name(self.seeds, spider, self.args)
        lines = (line.decode(errors="replace").strip() for _, part in self.source.parts() for line in part)
        return job_name(filter(None, lines), spider, self.args)

    def of_spider(self) -> "JobSpider":
        """The fields of the job's record about the spider."""
        from crawlog.streams.job_spec import JobSpider

        return JobSpider(self.spider, self.args, self.scrapy, self.starts, self.pipelines)

    @property
    def may_need_sink(self) -> bool:
        """Whether a sink may be started: for a file, or for pipelines. Those of a known job are read from the log."""
        return bool(self.outputs) or self.pipelines or not self.spider

    def example(self) -> str:
        """One of the given URLs, for a hint; empty if none were given."""
        return next(iter(self.seeds), "") or (self.source.first() if self.source is not None else "")

    @cached_property
    def source(self) -> "Source | None":
        """The seeds, cached because a pipe can be read only once; None if none were given."""
        return self._read(lambda _: None, None)

    def read_seeds(self, settings: "Settings", say: Callable[[str], None]) -> None:
        """Read the seeds, sitemaps with these settings; `say` is told of a pipe that stays open, by another thread."""
        self.source = self._read(say, lambda url: _collected(settings, url, say))

    def _read(self, say: Callable[[str], None], collect: Callable[[str], BinaryIO] | None) -> "Source | None":
        from crawlog.agents.seed import Source

        arguments = [*self.seeds, *([str(self.seeds_file)] if self.seeds_file else [])]
        return Source(arguments, collect=collect, say=say) if arguments else None


def _collected(settings: "Settings", url: str, say: Callable[[str], None]) -> BinaryIO:
    """The URLs of a sitemap; the client, which few runs need here, is imported then."""
    from crawlog.agents.seed import collect

    return collect(settings, url, say)


def refused(seeds: Sequence[str], *, allow_private: bool) -> list[str]:
    """Lines about seeds that are refused by their host name alone, with the setting that allows them, if any."""
    from crawlog.streams.http import literal_refusal
    from crawlog.streams.url import serialise

    told: dict[str, str] = {}
    for seed in seeds:
        try:
            host = urlsplit(serialise(seed)).hostname or ""
        except ValueError:
            continue  # no URL: it is told as a bad line
        reason = literal_refusal(host, allow_private)
        if reason is not None:
            is_open = literal_refusal(host, allow_private=True) is None
            told[host] = f"{seed} is not asked: {reason}" + (_OPENS * is_open)
    return list(told.values())[:TOLD]
