"""A job from its request to its summary, for `run`, `submit`, `crawl()` and the service.

JobRequest ─► submit.wanted_of: spider, seeds, name ─► Wanted ─► record.plan ─► JobWriter: record, seeds
                                                                                    │
run: workers of its own ──────────────┐                                             ▼
joined: those of a fleet that is there ┴─► JobFollower ─► the end ─► run_checks ─► Summary
                                                                      └─► run_outputs, or export ─► FILE

changes      pause, resume, stop, cancel and delete of a job that is there
live         progress on standard error, and the estimated end
job_closing  the last lines of a job's log, and Scrapy's stats
"""
