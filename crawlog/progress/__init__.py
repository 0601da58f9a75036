"""The progress of a crawl, from the reports that its workers write to crawl.progress once a second.

    crawl.progress ─► watch ─► picture   the newest report of each partition, and their sums
    crawl.dead     ─► watch (Losses)        │    the dead letters of one job
                                            ├─► pace     pages per second, and the estimated end of the job
                                            ├─► finish   decides in five steps whether a job is finished
                                            └─► live     shows a line or a table on standard error

The run (`commands/run.py`) polls watch through the supervisor, and calls the others. picture, pace and finish are pure:
the caller passes the time as `now`.
"""
