"""A job from its request to its summary, for `run`, `submit`, `crawl()` and the service.

RunRequest ─► run: workers of its own ─► job_in_log, planting ─┐
Submission ─► submit ─► joined: workers that run already ──────┴─► JobFollower ─► the end ─► Summary
│
run_outputs, or export ─► FILE ◄─ loss_check ◄───┘

changes     pause, resume, stop, cancel and delete of a job that is there
live        progress on standard error, and the estimated end
job_closing the last lines of a job's log, and Scrapy's stats
"""
