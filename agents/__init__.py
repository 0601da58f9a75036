"""WHEN it runs: the edges with a clock and a network, in the order of a URL's path. An agent asks streams/ and obeys.

    seed ─► crawl.urls ─► frontier ─► fetch ─► client ─► crawl.pages ─► parse ─► crawl.items ─► sink ─► FILE
              ▲            folds,       │   └► browser ┘  (one guarded     │
              │            dispatches   │      renders     request)        │
              └──────── founds ─────────┼──────────────────────────────────┘
                                        └── sandbox: a page that may kill its parser is tried in a child process

    control.py    every worker follows crawl.control: pause, stop, rules     progress.py    each reports how far it is

A stage is listed in `streams/stages.py`; its agent module has `attach(app)`.
"""

if __name__ != "crawlog.agents":  # a second copy, in which Faust would find no agents
    raise ImportError(f"import crawlog.agents, not {__name__} (faust -A crawlog.streams.app:fetch worker)")
