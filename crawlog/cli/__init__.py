"""The command line: arguments in, one command called, its value rendered, an exit code out.

    crawlog WORD …
      │ main          the commands in their order; errors become one message and one code (crawlog/outcome.py)
      ▼
    crawling  run, seed                     local     up, down, status, worker, engine
    stored    topics, verify, repair,       operate   control, dead
              replay, snapshot, kcat-config questions why, doctor, settings, probe
      │ options       `-s`, `--config`, `--data` … → Settings      arguments  URLs, files, names, checked
      │ reach         the log that the command works on: found, or started for it
      ▼
    crawlog.commands  returns a value
      ▼
    *_text, table     the value as text or JSON

Each command imports what it runs inside its function, so that `--help` stays fast.
"""
