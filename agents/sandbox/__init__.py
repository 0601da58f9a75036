"""Child processes: one tries suspicious pages, others run users' spiders.

    worker: trial ─ a page that is not simple ─► child (one fork a page) ─ parsed in time ─► the worker may parse it
              │                                                          └ killed ─► too_complex, a dead letter
              └ TrialHistory: CPU time of each domain's pages, in a file that outlives the worker

    any process: SpiderChild ─ calls ─► spider_process: Runner      forked by a zygote, which was exec'd for it
                       └ printed ◄─ its output                     limits: memory, processes, time of a page

A trial has limits of time and memory; a worker never parses a page that its child did not survive. A spider's code runs
in its own process only: a crash, an endless loop or a leak costs that process and one page. At a planned end that
process writes out its files and ends by itself, or is killed a second later. Deployed code is found in the log first
(`child_code`), and runs as a user of its own where the worker is root, or not at all (`child_user`).

    with SpiderChild(ref, ChildRules.of(settings, trust)) as child:       # blocks: commands, tests
        child.facts()                   → SpiderFacts, or Misconfigured: it cannot be loaded
        child.page(PageCall(meta, body)) → CallResult
        child.parts()                   → iterator of CallResult: `Runner.start`, which goes on when asked
        child.call("name", argument)    → bytes: `await loaded.call(name, argument)` of what `loader=` gave
                                          each raises SpiderDied if the process ended
    BackgroundChild(ref, rules, loop=loop).submit_page(call, then)        # an event loop waits (parse, sink), or `pump`
        then(SpiderFrame) or then(Died)     other calls: `submit(SpiderFrame(CALL, b"name", argument), then, limit_s)`

Names are imported at their first use: the processes of spiders import a few modules of this room, and no settings.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answers import MAX_TEXT, Fault, error_line, fault_of, misconfigured, result_of
    from .calls import Died
    from .child_code import ChildRules
    from .child_user import why_root
    from .frames import CALL, DONE, ENDED, FAILED, NEXT, SpiderFrame
    from .spider_child import LOAD_S, BackgroundChild, SpiderChild
    from .trial import TOO_COMPLEX, Trial, TrialHistory

__all__ = [
    "CALL",
    "DONE",
    "ENDED",
    "FAILED",
    "LOAD_S",
    "MAX_TEXT",
    "NEXT",
    "TOO_COMPLEX",
    "BackgroundChild",
    "ChildRules",
    "Died",
    "Fault",
    "SpiderChild",
    "SpiderFrame",
    "Trial",
    "TrialHistory",
    "error_line",
    "fault_of",
    "misconfigured",
    "result_of",
    "why_root",
]

_HOMES = {
    "TOO_COMPLEX": "trial",
    "BackgroundChild": "spider_child",
    "CALL": "frames",
    "DONE": "frames",
    "ENDED": "frames",
    "FAILED": "frames",
    "LOAD_S": "spider_child",
    "MAX_TEXT": "answers",
    "Fault": "answers",
    "NEXT": "frames",
    "ChildRules": "child_code",
    "Died": "calls",
    "SpiderChild": "spider_child",
    "SpiderFrame": "frames",
    "Trial": "trial",
    "TrialHistory": "trial",
    "error_line": "answers",
    "fault_of": "answers",
    "misconfigured": "answers",
    "result_of": "answers",
    "why_root": "child_user",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
