"""Fetch: requests each URL that the dispatcher hands out, and writes its page and its done.

    dispatcher ─► fetch_agent: places ─┬─► robots: the host's rules
                                       └─► task: sitemaps sent ─► ends early? ─► login step? ─► request ─► judged
                                                 `robots`         `suspects`     `logins`
    judged ─► outcome ─► crawl.pages ─► acknowledged ─► dones ─► crawl.urls ─► the place is free

Requests go through a `Transport` (`agents/client/transport.py`). `backlog` measures how far parse is behind.
`suspects` fetches a URL alone if a worker died of it. The decisions are in `streams/fetch/`.
"""
