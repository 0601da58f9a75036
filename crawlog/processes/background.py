"""`python -P -m crawlog.processes.background`: the supervisor that `crawlog up` starts; it runs until SIGTERM.

It holds the data folder as `run` does, but never finishes. Its settings come from the environment. Its first line on
standard output is JSON and tells whether it came up.
"""

import json
import os
import sys

from crawlog import outcome
from crawlog.schemas.progress import FLEET
from crawlog.streams.errors import CrawlError, Unreadable
from crawlog.streams.exit_codes import EX_DATAERR
from crawlog.terminal import tell

from .folder import service_note
from .forkserver import SERVICE
from .starts import Starts
from .supervisor import Stop, Supervisor, names
from .workers import Name

ACCEPTS_SKIPPED = "CRAWLOG_ACCEPTS_SKIPPED"  # Environment variable of `up --accept-skipped`

LOOK_S = 0.5  # Pause between two looks at workers and engine, seconds; no user waits for it

WORKING_S = 60.0  # How long `up` waits until every stage has a working worker. That takes 2 s, on a busy machine 20 s.


def main() -> None:
    """The supervisor in the background, until SIGTERM."""
    from crawlog.streams.code import folder_key
    from crawlog.streams.control import settled_control
    from crawlog.streams.log import Topics
    from crawlog.streams.settings import NO_FILE, load

    out, sys.stdout = sys.stdout, sys.stderr
    settings = load(config=NO_FILE)
    workers = names(settings, with_sink=True)
    service = [Name(SERVICE, SERVICE)] if settings.service.enabled else []
    try:
        with Supervisor(settings, "up", workers + service, tell) as supervisor:
            folder_key(settings.run.data)  # signs what is deployed on this folder; its workers trust it
            supervisor.launch()
            supervisor.connect(accepts_skipped=ACCEPTS_SKIPPED in os.environ)
            own = supervisor.settings
            supervisor.picture.sink = FLEET
            settled_control(own, supervisor.producer, Topics(own.kafka.prefix))
            supervisor.go(("fetch", "parse", "sink", SERVICE))
            supervisor.until_working(WORKING_S)
            note = service_note(settings.run.data) if settings.service.enabled else None
            started = {"bootstrap": supervisor.settings.kafka.bootstrap, "workers": len(workers)}
            out.write(json.dumps(started | {"service": note.url if note else ""}) + "\n")
            out.close()
            starts = Starts(supervisor, tell)
            while True:
                supervisor.look(LOOK_S)
                starts.look()
    except Stop:
        sys.exit(0)
    except CrawlError as error:
        if out.closed:
            tell(*str(error).split("\n"))
        else:
            out.write(json.dumps({"kind": type(error).__name__, "message": str(error)}) + "\n")
        sys.exit(EX_DATAERR if isinstance(error, Unreadable) else outcome.ENGINE)


if __name__ == "__main__":
    main()
