"""`crawlog` and `python -m crawlog`: signals first, for what the command line needs takes 0.3 s to import.

An interrupt in the middle of that is no crash, and nothing is there yet to be cleaned up; so too once a command ended.

`python -m` looks for modules in the current folder first, where a `queue.py` or a clone's `crawlog/` may lie. So it is
started once more with -P, before anything else is imported. The console script has no such place to look.
"""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])  # noqa: S606  # itself, with its own arguments

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the console script."""
    _end_at_signals()
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
