"""A crawl from a script: `crawlog run` as a function.

python examples/demo_site.py &
python examples/crawl_function.py

After Ctrl-C, start it again to continue the crawl.
"""

import asyncio

from crawlog import CrawlError, Summary, crawl

SEEDS = ["http://127.0.10.1:8800/", "http://127.0.10.2:8800/"]
SETTINGS = {"network.allow_private": True, "politeness.delay_s": 0.05}
"""The demo site is ours, and on loopback."""


async def main() -> Summary:
    """One row a page in pages.jsonl."""
    return await crawl(SEEDS, settings=SETTINGS, output="pages.jsonl")


if __name__ == "__main__":
    try:
        summary = asyncio.run(main())
    except CrawlError as error:
        raise SystemExit(f"the crawl ended: {error}") from None
    print(f"{summary.reason}: {summary.pages} pages in {summary.took_s:.1f} s, {summary.rows} rows in {summary.output}")
