"""`crawlog` and `python -m crawlog`: signals first, for what the command line needs takes 0.3 s to import.

An interrupt in the middle of that is no crash, and nothing is there yet to be cleaned up; so too once a command ended.
"""

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the console script."""
    _end_at_signals()
    from .cli import main as command

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
