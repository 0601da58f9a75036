"""The commands: settings and options in, values out. The command line prints the values and chooses the exit code.

    order ─► run ──────────────────────────────────────────────────────────────► summary
              │ job_in_log    reads the job's record in the log, and decides how this run continues it
              │ named_spider  the spider of the command, as its child process describes it
              │ planting      writes the job's record and its seeds to the log
              │ gains         counts pages and dead letters of this run
              │ trouble       reports temporary failures of the workers
              │ whole         checks the log for losses, and has them restored
              │ result_file   makes FILE from the sink's state
    run_process               the same run for `crawlog.crawl`, in a process of its own

    fetch, parse, shell       one_page: a page asked for now, or stored; tried_spider, shell: what is made of it
    init, genspider           new_spider writes spider_templates

    submit                    submission: a job for a fleet, checked; its record and its seeds

    up (down, status)   control   why   dead   replay   repair   snapshot   verify   doctor   probe

run works through `processes` (the supervisor) and `progress` (the reports). Each of the other commands is one file.
"""
