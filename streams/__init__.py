"""HOW a URL becomes rows: pure decisions, and the machinery that stores their results. Rooms import to the left only.

    THE WEB, by its standards     url ◄── http ◄── html
    THE CRAWL, pure               fold ◄── frontier     fetch     spiders ◄── parse
    THE MACHINERY                 settings   cluster ◄── log ◄── groups ◄── state, sink ◄── worker     engine

    crawl.urls ─► fold ─► state            a record changes the rows of its partition; nothing else changes rows
                   └────► frontier ─► fetch ─► crawl.pages ─► parse (spiders, html) ─► crawl.items ─► sink
                             ▲                                  │
                             └────────── crawl.urls ◄───────────┘ founds

    app.py: the apps that `faust -A` names   stages.py: what each stage reads and runs   errors.py: the tree of errors
    crash_points.py: where tests kill a process   exit_codes.py   files.py: private files   printable.py: what is shown
    hooks.py: which calls are due at the ends of jobs   logs.py: one line per event on standard error
Each room's `__init__` draws its own flow.
"""

if __name__ != "crawlog.streams":  # a second copy, in which Faust would find no agents
    raise ImportError(f"import crawlog.streams, not {__name__} (faust -A crawlog.streams.app:fetch worker)")
