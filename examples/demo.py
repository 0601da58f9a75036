"""`make crawl` without URLS: serves the demo site, crawls it, compares the rows with those that the site expects.

Options are passed to `crawlog run`. With an option that may change the rows, nothing is compared.
"""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from demo_site import NAMES, Site

DEFAULT_OUTPUT = "pages.jsonl"
SETTINGS = ("network.allow_private=true", "politeness.delay_s=0.05", "fetch.retry_delay_s=0.5")
"""Loopback addresses are private. The site is ours, so 20 pages a second and host do no harm."""
INTERRUPTED = (130, 143)
NEUTRAL = {"--data": 1, "--workers": 1, "--bootstrap": 1, "--fresh": 0, "--json": 0, "-v": 0}
"""Options that change no row, each with the number of words that follow it."""


def main() -> int:
    """Crawls; returns crawlog's exit code, or 1 if the rows are not the expected ones."""
    output, options = _output(sys.argv[1:])
    site = Site().start()
    told = ", ".join(f"{name} ({origin})" for name, origin in zip(NAMES, site.origins, strict=True))
    print(f"demo site: {told}", file=sys.stderr)
    settings = [word for setting in SETTINGS for word in ("-s", setting)]
    command = [sys.executable, "-P", "-m", "crawlog", "run", *site.seeds, *settings, "-o", output, *options]
    print("$ crawlog", *command[4:], file=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to crawlog as well, which stops cleanly
    try:
        code = subprocess.run(command, check=False, preexec_fn=_listen).returncode  # the child has one thread
    finally:
        site.stop()
    if code in INTERRUPTED:
        print("interrupted; `make crawl` goes on from here", file=sys.stderr)
    if code or output == "-":
        return code
    return _judge(site, Path(output), exact=not _others(options))


def _listen() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _output(arguments: list[str]) -> tuple[str, list[str]]:
    """The value of the last `-o`, and the other arguments."""
    output, others, words = DEFAULT_OUTPUT, [], iter(arguments)
    for word in words:
        if word in ("-o", "--output"):
            output = next(words, DEFAULT_OUTPUT)
        else:
            others.append(word)
    return output, others


def _others(options: list[str]) -> list[str]:
    """The options that are not neutral."""
    words, others = iter(options), []
    for word in words:
        if word not in NEUTRAL:
            others.append(word)
        for _ in range(NEUTRAL.get(word, 0)):
            next(words, None)
    return others


def _judge(site: Site, path: Path, *, exact: bool) -> int:
    """Prints the place of the results, and whether they are the expected ones."""
    print(f"results: {path}, one row a page", file=sys.stderr)
    if path.suffix != ".jsonl" or not exact:
        print("  compared only as .jsonl and without options that change rows", file=sys.stderr)
        return 0
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found, expected = {row["url"]: row["status"] for row in rows}, site.expected
    twice = [url for url, count in Counter(row["url"] for row in rows).items() if count > 1]
    wrong = {
        "missing": sorted(expected.keys() - found.keys()),
        "not expected": sorted(found.keys() - expected.keys()),
        "twice": twice,
        "with another status": [url for url in expected.keys() & found.keys() if expected[url] != found[url]],
        "asked against robots.txt": sorted({one.path for one in site.forbidden()}),
    }
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(Counter(found.values()).items(), key=str))
    print(f"  {len(rows)} rows ({statuses}); the site expects {len(expected)}", file=sys.stderr)
    print(f"  {len(site.asked)} requests in this run, {len(site.forbidden())} against robots.txt", file=sys.stderr)
    for what, urls in wrong.items():
        if urls:
            print(f"  {what}: {', '.join(urls)}", file=sys.stderr)
    if not any(wrong.values()):
        print("  none missing, none twice, none unexpected", file=sys.stderr)
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
