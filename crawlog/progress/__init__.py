"""How far a crawl is, by what its workers report once a second on crawl.progress.

    crawl.progress ─► watch ─► picture   the newest report of each partition, and their sums
    crawl.dead     ─► watch (Losses)        │
                                            ├─► pace     pages per second, and when the job may end
                                            ├─► finish   the five steps that say that a job is finished
                                            └─► live     a line or a table, on standard error

picture, pace and finish are pure: time is `now`.
"""
