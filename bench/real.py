"""The end-to-end table on real pages, sent with gzip: crawlog, with one parse worker and two, beside a bare loop,
Colly, Crawlee and a tuned Scrapy.

    python -m bench.real                       5 rounds, 20 hosts x 12 and x 600 pages
    python -m bench.real --short               2 rounds of 12 and 60 pages
    python -m bench.real --only crawlog,bare

As `bench.speed`, with other pages: 154 of the open web between 2 and 400 kB, 92 kB on the average, each below a list of
links of the site's own. Some of their own links end in 404, and are asked for by all. Scrapy asks for no coding, since
its middlewares are off, and gets them plain. A page's CPU is all CPU by the site's pages: 404s are paid by them.
"""

import sys

from bench.speed import Goals, asked, play, told_all
from tests.support.synthetic_site import REPO

PEERS = "crawlog,crawlog_two,bare,colly,scrapy_tuned,crawlee"
SIZES = (12, 600)
SHORT_SIZES = (12, 60)

GOALS = Goals(
    at_most=(("bare", 1.6), ("colly", 1.2)),
    at_least=(("scrapy_tuned", 1.8),),
    pace=1.0,
    broker_ms=0.4,
    records=None,  # a page has 0.8 dead links besides, each a response
)

REAL = REPO.parent / "shared" / "testdata" / "pages"


def main() -> int:
    """Runs the table on the real pages."""
    if not REAL.is_dir():
        print(f"skipped: no real pages in {REAL.relative_to(REPO.parent)} beside the repository", file=sys.stderr)
        return 0
    run = asked(__doc__, SIZES, SHORT_SIZES, PEERS)
    scores = play(run.peers, run.sizes, run.rounds, {"real": REAL, "links": 60}, dead_links=True)
    return told_all(run, scores, GOALS, ("real", "Real pages", "real pages of 92 kB, sent with gzip"))


if __name__ == "__main__":
    sys.exit(main())
