"""`python -m bench [NAME] [ARGS]`: one benchmark, or all that write a section of RESULTS.md, one after the other.

python -m bench                 everything at full size: hours of a quiet machine
python -m bench --short         everything, small: minutes, nothing written
python -m bench speed --only crawlog,bare
"""

import importlib
import sys
import traceback

SIGNALLED = 128
"""Exit codes above it are those of a signal."""

ALL = (
    "speed",
    "real",
    "scrapy_spider",
    "seen",
    "seen_large",
    "frontier",
    "seeds",
    "backlog",
    "rebuild",
    "replay",
    "query",
    "stores",
    "one_site",
    "render",
    "hostile",
    "mute",
    "soak",
    "runs",
    "web",
    "walk",
    "realsite",
    "crashes",
    "faults",
)
ANY = (
    *ALL,
    "parse",
    "fetch",
    "spider_cost",
    "politeness",
    "as_scrapy",
    "idle",
    "parquet_rows",
    "service_jobs",
    "hosts",
    "dashboard",
    "screenshots",
    "scrapydweb",
    "api_fuzz",
)


def main() -> int:
    """The exit code of one benchmark, or 1 if any of all failed."""
    words = sys.argv[1:]
    if "-h" in words[:1] or "--help" in words[:1]:
        print(__doc__, f"\nNAME: {', '.join(ANY)}")
        return 0
    if words and not words[0].startswith("-"):
        if words[0] not in ANY:
            sys.exit(f"no benchmark {words[0]}: there are {', '.join(ANY)}")
        return run(words[0], words[1:])
    failed = [name for name in ALL if attempt(name, words)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def attempt(name: str, arguments: list[str]) -> int:
    """The exit code of one benchmark among others, whatever ends it but a signal.

    Raises: SystemExit: a signal ended it, so the others must not begin.
    """
    try:
        return run(name, arguments)
    except SystemExit as end:
        if isinstance(end.code, int):
            if end.code > SIGNALLED:
                raise
            return end.code
        print(f"{name}: {end.code}", file=sys.stderr)
        return int(end.code is not None)
    except Exception:  # noqa: BLE001  # hours of other benchmarks are to come
        traceback.print_exc()
        return 1


def run(name: str, arguments: list[str]) -> int:
    """Runs one benchmark's `main` with its arguments."""
    sys.argv = [f"bench.{name}", *arguments]
    print(f"── {name}", file=sys.stderr)
    module = "faults.__main__" if name == "faults" else name
    return int(importlib.import_module(f"bench.{module}").main() or 0)


if __name__ == "__main__":
    sys.exit(main())
