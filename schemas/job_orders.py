"""Jobs of a fleet: orders that change a job, its outputs, and the code that it pins. Parts of records of crawl.urls.

command ─► JobOrder in partition 0 of crawl.urls ─► its fold: does `expects` name the current revision?
└► yes: the order's offset is the new revision; the coordinator copies the record to the other
partitions, then to crawl.control      no: refused; crawl.control says so (`JobCopy.answers`)
"""

import re
from typing import Annotated, Literal

import msgspec

# `running`: URLs are fetched. `paused`: the operator's pause. `stopped`: by `max_pages`, by its spider, or by a
# command; its queue stays. `finished`: nothing is left; a queued found makes it run again. `watching`: nothing is left
# until a URL is due again. `failed`: it cannot go on, as its code is refused. `cancelled`: for good. `deleted`: the
# tombstone alone is left. `waiting`: for other jobs.
JobStateName = Literal[
    "running", "paused", "stopped", "finished", "failed", "cancelled", "deleted", "waiting", "watching"
]

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


GROUP = "group:"  # Begins the name of a group in `JobFlow.after`; no job's name has a colon


class JobFlow(msgspec.Struct, omit_defaults=True, frozen=True):
    """How a job is connected with others.

    Attributes:
        after: Jobs, or groups of them (`group:NAME`), that end before it runs.
        after_any: Whether it runs however they end; else one that is cancelled, failed or deleted fails it, too.
        group: Group that it belongs to; empty for none.
        feeds: `JOB:FIELD`: URLs in this field of the rows of another job are its seeds.
        on_finish: What is called at its end: URLs, and names of targets that the workers' settings declare.
    """

    after: tuple[str, ...] = ()
    after_any: bool = False
    group: str = ""
    feeds: tuple[str, ...] = ()
    on_finish: tuple[str, ...] = ()

    @property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """The jobs that feed it, and the fields of their rows."""
        found = dict[str, tuple[str, ...]]()
        for feed in self.feeds:
            job, _, field = feed.partition(":")
            found[job] = (*found.get(job, ()), field)
        return found


class ParseAgain(msgspec.Struct, omit_defaults=True, frozen=True):
    """The order to parse the stored pages of a job again.

    Attributes:
        number: Of the orders of the job, from 1: notes about an earlier one do not count.
        start: By partition of crawl.pages, an offset before which the job has no page.
        end: The ends of the partitions at the order, for those who are shown how far it is: where it really ends is
            noted by the owner of the partition (`ParsedAgain.end`).
    """

    number: int
    start: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    end: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


FEED = "feed:"  # Begins the name of a feed among the outputs of the job that feeds; no output's name has a colon


def feed_name(job: str, epoch: int) -> str:
    """The name by which a job that is fed, in one of its epochs, stands among the outputs of the other one."""
    return f"{FEED}{job}:{epoch}"


NO_FLOW = JobFlow()


def is_plain(name: str) -> bool:
    """Whether a name has no slash and no colon, does not begin with a dot, and is short."""
    return _PLAIN_NAME.fullmatch(name) is not None


class CodeRef(msgspec.Struct, frozen=True):
    """A version of a project in crawl.code, pinned by its hash.

    Attributes:
        sha256: Of the archive, in hex.
    """

    project: str
    version: str
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]


class FeedLayout(msgspec.Struct, omit_defaults=True, frozen=True):
    """How an output writes its rows, where a feed of Scrapy's asks for more than the name of the output says.

    Attributes:
        format: Suffix of the format; empty for that of the output.
        fields: Keys of the rows and their names in the output, in order; empty for all.
        feed: Number of the feed: only rows that it accepts; -1 for all, where others choose; None where none does.
        encoding: Of a text format; empty for UTF-8.
        indent: Of a JSON array, in spaces.
    """

    format: Annotated[str, msgspec.Meta(max_length=30)] = ""
    fields: tuple[tuple[str, str], ...] = ()
    feed: int | None = None
    encoding: Annotated[str, msgspec.Meta(max_length=30)] = ""
    indent: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0

    @property
    def keeps_rows(self) -> bool:
        """Whether rows are written as they are kept."""
        return not (self.fields or self.encoding) and self.feed is None


NO_LAYOUT = FeedLayout()


class FeedOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output that a project's settings name.

    Attributes:
        output: As `-o` takes it; `%(time)s` in it is when the job began.
        overwrite: Whether it may replace a file that the job has not made.
    """

    output: str
    layout: FeedLayout
    overwrite: bool = False


FEEDS_KEY = "$feeds"  # In a row: numbers of the feeds that accept it, where they choose; no output has it


class OutputSpec(msgspec.Struct, omit_defaults=True, frozen=True):
    """An output of a job on a fleet. It holds no path, address, command or credential, since any writer of the topic
    could then write files and reach servers as the workers.

    Attributes:
        name: A file's plain name below `sink.folder` (`rows.jsonl`), or the name of an output that the workers' own
            settings declare (`outputs`).
        declared: Whether it is such a declared one.
        required: Whether the job is finished only when this output is complete.
        fill: How often it was emptied, to be filled from the log again.
        layout: How it writes rows.
    """

    name: str
    declared: bool = False
    required: bool = True
    fill: int = 0
    layout: FeedLayout = NO_LAYOUT

    def check(self) -> "OutputSpec":
        """The output, if its name is plain.

        Raises: ValueError: it has a slash, begins with a dot, or is too long.
        """
        if not is_plain(self.name):
            raise ValueError(f"{self.name!r:.100} is no plain name: letters, digits, dots, dashes, at most 200 of them")
        return self


# The output of a job with pipelines for which no other one is wanted. A `run` without a fleet goes on with such a job,
# so the job does not wait for it.
PIPELINES_ALONE = OutputSpec("none", declared=True, required=False)
