"""What a run is asked for: seeds, spider, file; and the name of a job that was given none."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import xxhash

if TYPE_CHECKING:
    from crawlog.agents.seed import Source

TOLD = 3
"""Seeds that are named one by one."""


def job_name(seeds: Iterable[str], spider: str = "") -> str:
    """The name of a job that was given none: the same seeds, in any order, and the same spider are the same job."""
    parts = [*sorted({seed.strip() for seed in seeds}), spider]
    return "job-" + xxhash.xxh3_64_hexdigest("\n".join(parts).encode())[:10]


@dataclass
class Order:
    """What the user asked for.

    Attributes:
        job: The name as given; None to make one from seeds and spider.
        spider: `/FILE.py:Class`, empty for the default one; the job's name does not depend on its folder.
        output: File of the results, `-` for standard output, None for none.
        fresh: Crawl again in a new epoch.
        spider_hash: Of the spider's file; empty for the default one.
    """

    seeds: Sequence[str] = ()
    seeds_file: Path | None = None
    spider: str = ""
    job: str | None = None
    output: str | None = None
    fresh: bool = False
    spider_hash: str = ""

    def name(self) -> str:
        """The job's name."""
        if self.job:
            return self.job
        spider = Path(self.spider).name
        if not self.seeds_file or self.source is None:
            return job_name(self.seeds, spider)
        lines = (line.decode(errors="replace").strip() for _, part in self.source.parts() for line in part)
        return job_name(filter(None, lines), spider)

    def example(self) -> str:
        """One of the URLs that it is given, for a hint; empty where the job has all of its own."""
        return next(iter(self.seeds), "") or (self.source.first() if self.source is not None else "")

    @cached_property
    def source(self) -> "Source | None":
        """The seeds, read once where they come from a pipe; None when the job has all of its own."""
        from crawlog.agents.seed import Source

        arguments = [*self.seeds, *([str(self.seeds_file)] if self.seeds_file else [])]
        return Source(arguments) if arguments else None


def refused(seeds: Sequence[str], *, allow_private: bool) -> list[str]:
    """What to tell of seeds that their spelling alone keeps from being asked: how to have them, or that none does."""
    from crawlog.streams.http import literal_refusal
    from crawlog.streams.url import serialise

    told: dict[str, str] = {}
    for seed in seeds:
        host = urlsplit(serialise(seed)).hostname or ""
        reason = literal_refusal(host, allow_private)
        if reason is not None:
            is_open = literal_refusal(host, allow_private=True) is None
            told[host] = f"{seed} is not asked: {reason}" + ("; -s network.allow_private=true has it asked" * is_open)
    return list(told.values())[:TOLD]
