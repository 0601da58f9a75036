"""Seeds: URLs from files, standard input, sitemaps and the command line become founds in crawl.urls.

    arguments ─► Source (`source.py`; `sitemap_seeds.py` for the URLs in a sitemap) ─► lines
                   │ first reading: `scope_names` ─► the job's record, the names that join it
                   └ second reading: Sower (`sower.py`) ─► batches by partition ─► crawl.urls, acknowledged

    rows of another job ─► JobFeed (`job_feed.py`) ─► crawl.urls
    `start` of a spider ─► its parts ─► StartSower (`start_sower.py`) ─► crawl.urls, crawl.items

`plant` does both (`planting.py`). `line.py` parses one line. `kept_seeds` and `old_seeds` read the seeds of a log, to
plant them again.
"""

from .job_feed import JobFeed, feed_sink, is_feed
from .line import Seed
from .planting import kept_seeds, old_seeds, plant, scope_names
from .sitemap_seeds import collect
from .source import Source
from .sower import MAX_NAMES, Look, Sower
from .start_sower import StartSower

__all__ = [
    "MAX_NAMES",
    "JobFeed",
    "Look",
    "Seed",
    "Source",
    "Sower",
    "StartSower",
    "collect",
    "feed_sink",
    "is_feed",
    "kept_seeds",
    "old_seeds",
    "plant",
    "scope_names",
]
