"""The processes of a crawl on this machine: the supervisor starts, watches and stops all others.

    crawlog run, or background (`crawlog up`)
      │ folder      makes and checks the data folder and its disk (run, up, and commands that may start an engine)
      │ hold        locks the folder for one command at a time
      ▼
    supervisor      main thread: signals, engine, workers, reports
      ├─ streams/recovery   detects records that the log has lost, restores them before a worker writes
      ├─ starting   runs the `start` of a spider in a child, and sends what it gives (starts: of which jobs; feeding:
      │             what it is asked for when an idle job is fed)
      └─ workers    starts, watches, restarts and stops the worker processes
           ▼
         forkserver imports the workers' modules once, and forks one worker for each name, and the HTTP service
                    (folder.service_note: where it listens, and the token of the data folder)

    crawlog worker start
      ▼
    start_process   runs the `start` of spiders without a supervisor, for workers that no `up` has started

A worker dies with its supervisor, however the supervisor ends.
"""
