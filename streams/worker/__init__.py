"""A worker: one process, one stage, one Faust app with our consumer.

    process.run_worker ─► crawl_app.CrawlApp ─► consumer.Consumer ─► the agent's stream of records
                            hooks, stage          │ app's loop          │ positions.done(offset)
                                                  ▼                     ▼
                          member.ConsumerThread (aiokafka, a thread) ◄─ positions: what is committed, where to start

    watchdog   ends a worker that is stuck            lease     until when no other worker can own our partitions
    suspects   which URL was in work at each death    contract  the app as these parts see it
    own_process  its reports about itself, an operator's command to end it, freed memory back to the system

Each wait of a stop or a rebalance has a limit: `finish_within`.
"""

from .consumer import COMMIT_S, finish_within
from .crawl_app import CrawlApp
from .lease import boottime
from .member import LARGE_BYTES
from .own_process import OwnProcess, give_back_memory, is_for_us, stop_as_ordered, why_ended
from .process import refuse_to_start, run_worker
from .suspects import Suspects, Verdict

__all__ = [
    "COMMIT_S",
    "LARGE_BYTES",
    "CrawlApp",
    "OwnProcess",
    "Suspects",
    "Verdict",
    "boottime",
    "finish_within",
    "give_back_memory",
    "is_for_us",
    "refuse_to_start",
    "run_worker",
    "stop_as_ordered",
    "why_ended",
]
