"""Renders pages in the system's Chromium.

    browsing (which pages, one result each) ─► render (this worker's browser, restarted if it dies)
                                                 ├─► chromium: the process, its profile, its memory
                                                 └─► visit (one page in a tab: load, acting, wait, read the dom)
                                                       └─► resources: every request of the page goes through our client,
                                                           its guard, robots.txt and cookies

`streams/settings/browser.py` finds the browser. It has no network of its own, and no state that outlives a page.
"""

from .browsing import Browsing

__all__ = [
    "Browsing",
]
