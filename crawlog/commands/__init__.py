"""What commands do: settings and options in, values out. The command line prints them, and chooses the exit code.

    order ─► run ──────────────────────────────────────────────────────────────► summary
              │ job_in_log    what the log says of the job, and what this run wants
              │ planting      its record and its seeds, into the log
              │ gains         pages and dead letters of this run
              │ trouble       what the workers cannot do for now
              │ whole         is the log whole? else what it lost is made again
              │ result_file   FILE, from the sink's state
    run_process               the same run for `crawlog.crawl`, in a process of its own

    up (down, status)   control   why   dead   replay   repair   snapshot   verify   doctor   probe

Each of the others is one file.
"""
