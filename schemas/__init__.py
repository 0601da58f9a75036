"""WHAT travels: one file a topic, with its records, their version and their codec.

    seed ──→ crawl.urls ──→ fetch ──→ crawl.pages ──→ parse ──→ crawl.items ──→ sink
     urls.py   ▲  ▲ results │          pages.py        │ found    items.py
               │  └─────────┘                          │
               └───────────────────────────────────────┘
    every worker ←──→ crawl.control    control.py     jobs, commands, rewinds: compacted by name
    every worker ───→ crawl.progress   progress.py    reports of what each worker did
    fetch ──────────→ crawl.hosts      hosts.py       figures of hosts, for people
    a bad record ───→ crawl.dead       dead.py        the record as it was, and why

`requests.py` is a request with all that belongs to it, within founds and pages. `record.py` is a record as it is read
from any topic; `codec.py` decodes JSON so that ValueError is the only error.
"""

if __name__ != "crawlog.schemas":  # a second copy, in which Faust would find no agents
    raise ImportError(f"import crawlog.schemas, not {__name__} (faust -A crawlog.streams.app:fetch worker)")
