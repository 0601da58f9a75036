"""The one table of stages: the input, agents and buffers of each. A new stage is a line here.

crawl.urls ─► fetch ─► crawl.pages ─► parse ─► crawl.items ─► sink
    ▲                                   │
    └──────────────── founds ───────────┘
"""

from typing import Literal, NamedTuple

Stage = Literal["fetch", "parse", "sink"]


class StageRow(NamedTuple):
    """A stage.

    Attributes:
        topic: The topic that it reads, as `Topics` names it.
        agents: Modules with a function `attach(app)`. A stage never imports another one's; fetch runs the frontier too.
        buffered: Size of the agent's buffer, in records. A batch of founds has ≤ 256 KiB; a page some 30 kB, ≤ 8 MiB.
        polled: Records taken from the consumer's thread at a time; a hand-over costs some 200 µs.
    """

    topic: str
    agents: tuple[str, ...]
    buffered: int
    polled: int


_ALL = ("crawlog.agents.progress", "crawlog.agents.job_lines")

STAGES: dict[Stage, StageRow] = {
    "fetch": StageRow("urls", ("crawlog.agents.fetch.fetch_agent", *_ALL), 64, 256),
    "parse": StageRow("pages", ("crawlog.agents.parse.parse_agent", *_ALL), 16, 64),
    "sink": StageRow("items", ("crawlog.agents.outputs.outputs_worker", *_ALL), 32, 256),
}
