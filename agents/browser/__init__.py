"""Pages rendered by a Chromium of the system.

    browsing (which pages, one result each) ─► render (a browser of this worker, restarted if it dies)
                                                 ├─► chromium: the process, its profile, its memory
                                                 └─► visit (one page in a tab: load, wait, read the DOM)
                                                       └─► resources: every request of the page goes through our client,
                                                           its guard, robots.txt and cookies
    installed: where a Chromium is, and its version

The browser has no network of its own, and no state that outlives a page.
"""

from .browsing import Browsing
from .installed import browser_version, find_browser, wants_browser

__all__ = [
    "Browsing",
    "browser_version",
    "find_browser",
    "wants_browser",
]
