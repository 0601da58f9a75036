"""A job from its request to its summary, for `run`, `submit`, `crawl()` and the service.

request ─► submit ──► the job's record and its seeds ─► FleetView ─► follow ─► Summary
└► run: workers of its own ─► job_in_log, planting ─► the job's end ─► result_file ─► Summary

request     the job as a user or a program describes it, checked; `order`: that of `run`
changes     pause, resume, stop, cancel and delete of a job that is there
live        progress on standard error; `pace` estimates the end
job_closing the last lines of a job's log, and Scrapy's stats

run_process the same run for `crawlog.crawl`, in a process of its own
"""
