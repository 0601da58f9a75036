"""The command line: arguments in, one command called, its value rendered, an exit code out.

    crawlog WORD …
      │ main          the commands in their order; errors become one message and one code (crawlog/outcome.py)
      ▼
    crawling  run, seed                     local     up, down, status, worker, engine
    jobs      submit, jobs                  fleet     workers, pages
    stored    topics, verify, repair,       operate   control, dead
              replay, kcat-config questions why, doctor, settings, probe
      │ options       makes Settings of `-s`, `--config`, `--data` …     arguments  checks URLs, files, names
      │ reach         finds the log that the command works on, or starts it
      ▼
    crawlog.commands  returns a value
      ▼
    *_text, table     render the value as text or JSON

Each command function imports its own code, so that `--help` stays fast.
"""
