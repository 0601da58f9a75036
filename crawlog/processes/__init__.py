"""The processes of a crawl on this machine: which one starts, watches and stops which.

    crawlog run, or background (`crawlog up`)
      │ folder      the data folder, made and checked       hold   held by one command at a time
      ▼
    supervisor      in the main thread: signals, engine, workers, reports
      ├─ log_care   notices what the log has lost, and makes it again before a worker writes
      ├─ disk       whether there is space
      └─ workers    started, watched, started again, stopped
           ▼
         forkserver loads what workers need once, and forks one for each name

A worker dies with its supervisor, whatever ends that one.
"""
