"""`python -m bench [NAME] [ARGS]`: one benchmark, or all that write a section of RESULTS.md, one after the other.

python -m bench                 everything at full size: hours of a quiet machine
python -m bench --short         everything, small: minutes, nothing written
python -m bench speed --only crawlog,bare
"""

import importlib
import sys

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
    "render",
    "hostile",
    "mute",
    "soak",
    "runs",
    "faults",
)
ANY = (
    *ALL,
    "web",
    "crashes",
    "parse",
    "fetch",
    "spider_cost",
    "walk",
    "realsite",
    "politeness",
    "as_scrapy",
    "site",
    "idle",
)


def main() -> int:
    """The highest exit code of the benchmarks that ran."""
    words = sys.argv[1:]
    if "-h" in words[:1] or "--help" in words[:1]:
        print(__doc__, f"\nNAME: {', '.join(ANY)}")
        return 0
    if words and not words[0].startswith("-"):
        if words[0] not in ANY:
            sys.exit(f"no benchmark {words[0]}: there are {', '.join(ANY)}")
        return run(words[0], words[1:])
    return max(run(name, words) for name in ALL)


def run(name: str, arguments: list[str]) -> int:
    """Runs one benchmark's `main` with its arguments."""
    sys.argv = [f"bench.{name}", *arguments]
    print(f"── {name}", file=sys.stderr)
    module = "faults.__main__" if name == "faults" else name
    return int(importlib.import_module(f"bench.{module}").main() or 0)


if __name__ == "__main__":
    sys.exit(main())
