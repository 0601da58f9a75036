"""What a run shows of its progress, from the workers' reports (`streams/control/`).

    FleetReports ─┬─► pace   pages per second, and the estimated end of the job
                  └─► live   a line or a table on standard error

The run (`commands/run.py`) polls the picture through the supervisor. pace is pure: the caller passes the time as `now`.
"""
