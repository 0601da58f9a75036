"""The one table of stages: what a worker of each one reads, runs and holds. A new stage is a line here.

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
        agents: Modules with a function `attach(app)`. No stage imports another one's; fetch runs the frontier too.
        buffered: Records that wait for the agent. Founds: batches ≤ 256 KiB; pages: 30 kB mostly, 8 MiB at worst.
        polled: Records taken from the consumer's thread at a time: a hand-over costs some 200 µs.
    """

    topic: str
    agents: tuple[str, ...]
    buffered: int
    polled: int


STAGES: dict[Stage, StageRow] = {
    "fetch": StageRow("urls", ("crawlog.agents.fetch.fetch_agent", "crawlog.agents.progress"), 64, 256),
    "parse": StageRow("pages", ("crawlog.agents.parse.parse_agent", "crawlog.agents.progress"), 16, 64),
    "sink": StageRow("items", ("crawlog.agents.sink.sink_agent", "crawlog.agents.progress"), 32, 256),
}
