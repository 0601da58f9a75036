"""Fetch: what the dispatcher allows is asked for, and becomes a page and a done.

    dispatcher ─► fetch_agent: places ─┬─► robots: the host's rules
                                       └─► task: sitemaps told ─► ends unasked? ─► login step? ─► asked ─► judged
                                                 `sitemaps`       `suspects`       `logins`
    judged ─► outcome ─► crawl.pages ─► acknowledged ─► dones ─► crawl.urls ─► the place is free

Requests go through a `Transport` (`agents/client/transport.py`). `backlog` tells how far parse is behind.
`suspects` asks for URLs alone that a worker died of. What is decided stands in `streams/fetch/`.
"""
