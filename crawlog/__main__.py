"""`crawlog` and `python -m crawlog`: sets signal handlers, then imports the command line, which takes 0.3 s.

A signal during the imports, or after the command, ends the process at once: there is nothing to clean up.

`python -m` searches the current folder first, which may contain a `queue.py` or a clone's `crawlog/`. So the process
restarts itself with -P before it imports anything else. The console script does not search the current folder.
"""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])  # noqa: S606  # restarts itself with its own arguments

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the console script."""
    _end_at_signals()
    import crawlog.streams.logs  # noqa: F401  # first: it loads structlog alone
    from crawlog.cli.main import main as command

    try:
        command()
    finally:
        _end_at_signals()


def _end_at_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: os._exit(128 + number))


if __name__ == "__main__":
    main()
