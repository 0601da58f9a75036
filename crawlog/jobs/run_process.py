"""`python -m crawlog.jobs.run_process PID`: one run for `crawlog.crawl`, until it is finished or SIGTERM comes.

It reads the `RunRequest` from standard input, and its settings from the environment. It writes one `Ended` to standard
output; all other text goes to standard error. It dies with PID, its parent.
"""

import os
import sys
import traceback

import msgspec

from crawlog.streams.errors import CrawlError

from .summary import Summary


class Ended(msgspec.Struct):
    """How a run ended: with a summary, or with an error of crawlog.

    Attributes:
        error: The name of the error's class.
    """

    summary: Summary | None = None
    error: str = ""
    message: str = ""


def main() -> None:
    """Runs, and writes how it ended."""
    from crawlog import outcome
    from crawlog.jobs.live import Lines
    from crawlog.streams.kernel import die_with
    from crawlog.streams.settings import NO_FILE, load
    from crawlog.terminal import tell

    from .run import run
    from .run_request import RunRequest

    die_with(int(sys.argv[1]))
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    try:
        with outcome.stopped_by_signals():
            request = msgspec.json.decode(sys.stdin.buffer.read(), type=RunRequest)
            ended = Ended(run(load(config=NO_FILE), request, Lines(sys.stderr)))
    except CrawlError as error:
        ended = Ended(error=type(error).__name__, message=str(error))
    except Exception as error:  # noqa: BLE001  # a bug: the caller's process gets it as an error of crawlog
        for line in "".join(traceback.format_exception(error)).splitlines():
            tell(line)
        ended = Ended(error="CrawlError", message=f"internal error: {type(error).__name__}: {error}")
    out.write(msgspec.json.encode(ended))
    out.flush()
    os._exit(0)  # skips the cleanup of this process: its answer is written


if __name__ == "__main__":
    main()
