"""Shared by the Scrapy peers: arguments, the tracking parameters to cut off, settings that only lift Scrapy's own limits."""

import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SEEDS = Path(sys.argv[1]).read_text().split()
OUT = sys.argv[2]
HOSTS = sorted({urlsplit(seed).hostname or "" for seed in SEEDS})

SETTINGS: dict[str, Any] = {
    "CONCURRENT_REQUESTS": 256,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 256,
    "DOWNLOAD_DELAY": 0,
    "LOG_LEVEL": "WARNING",
    "TELNETCONSOLE_ENABLED": False,
}


def without_tracking(href: str) -> str:
    """The link without the site's tracking parameters, so that every peer sees as many pages."""
    at = href.find("utm_")
    return href if at < 0 else href[: at - 1]
