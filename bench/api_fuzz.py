"""`python -m bench.api_fuzz [SECONDS]`: schemathesis over /api/v1 of a fleet of its own, in a temporary folder.

It fails at a 5xx, at a status, a media type or a body that the description does not name, and at an answer that takes
longer than `SLOW_S`. The stream of events never ends, and is left out. Other phases than stateful tests repeat until
the time is spent.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

SECONDS = 300
SLOW_S = 30

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


class Fuzzed(NamedTuple):
    """How a run ended: what schemathesis said, and whether it found anything."""

    is_clean: bool
    said: str
    seconds: float


class Place(NamedTuple):
    """A service."""

    url: str
    token: str


@contextmanager
def fleet(data: Path) -> Iterator[Place]:
    """A fleet with a service, stopped afterwards."""
    crawlog = [sys.executable, "-m", "crawlog"]
    ours = ["--data", str(data), "-s", "service.port=0"]
    subprocess.run([*crawlog, "up", *ours], check=True, capture_output=True)
    try:
        note = json.loads((data / "run" / "service.json").read_text())
        yield Place(f"http://127.0.0.1:{note['port']}", note["token"])
    finally:
        subprocess.run([*crawlog, "down", "--data", str(data)], check=False, capture_output=True)


def fuzz(place: Place, seconds: float, folder: Path, phases: str = "examples,coverage,fuzzing,stateful") -> Fuzzed:
    """Runs schemathesis; its files go into `folder`."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{place.url}/api/v1/openapi.json"]
    command += ["--header", f"Authorization: Bearer {place.token}", "--checks", ",".join(CHECKS), "--phases", phases]
    command += [
        "--max-time",
        str(int(seconds)),
        "--request-timeout",
        str(SLOW_S),
        "--continue-on-failure",
        "--no-color",
    ]
    command += ["--exclude-path", "/api/v1/jobs/{job}/items/live", "--generation-database", "none"]
    command += ["--exclude-path-regex", "^/api/v1/workers/.*(stop|drain)$"]
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "120"}
    )
    return Fuzzed(done.returncode == 0, done.stdout + done.stderr, time.monotonic() - begun)


def main() -> None:
    """Prints what schemathesis found, and exits as it does."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with TemporaryDirectory(prefix="crawlog-fuzz-") as name, fleet(Path(name) / "data") as place:
        found = fuzz(place, seconds, Path(name))
        log = (Path(name) / "data" / "logs" / "service.log").read_text()
    print(re.sub(r"\n{3,}", "\n\n", found.said))
    print(f"{found.seconds:.0f} s; errors in the service's log: {log.count('request_failed')}")
    sys.exit(not found.is_clean)


if __name__ == "__main__":
    main()
