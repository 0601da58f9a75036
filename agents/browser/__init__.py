"""crawlog.agents.browser."""

from .browsing import Browsing
from .installed import browser_version, find_browser, wants_browser

__all__ = [
    "Browsing",
    "browser_version",
    "find_browser",
    "wants_browser",
]
