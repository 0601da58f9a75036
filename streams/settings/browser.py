"""Finds the Chromium that renders pages, or tells the user how to install it.

It comes from the system (Debian: `chromium`), since browsers need security updates that no lock file can give. Only its
driver is a Python package, in the extra `browser`.
"""

import os
import shutil
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING

from crawlog.streams.errors import Misconfigured

if TYPE_CHECKING:
    from .settings import Settings

# Its names in the packages of Debian, Ubuntu, Alpine, Fedora and Google.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

ANSWER_S = 20.0


def find_browser(settings: "Settings") -> str:
    """Path of the browser that renders.

    Raises: Misconfigured: there is no browser, no driver, or the sandbox is on and cannot work.
    """
    if find_spec("playwright") is None:
        raise Misconfigured(
            "JavaScript pages need the package playwright, and it is not installed.\n"
            "pip install 'crawlog[browser]' (and, for the browser itself, apt install chromium)"
        )
    named = settings.render.browser
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        what = f"render.browser = {named} is no program" if named else f"none of {', '.join(NAMES)} is on the PATH"
        raise Misconfigured(
            f"JavaScript pages need Chromium, and {what}.\n"
            "apt install chromium (or what your system calls it), or name one with -s render.browser=PATH"
        )
    if settings.render.sandbox and os.geteuid() == 0:
        raise Misconfigured(
            "JavaScript pages need Chromium's sandbox, and Chromium has none when root starts it.\n"
            "Run crawlog as another user; or, where the browser is contained otherwise, say -s render.sandbox=false"
        )
    return found


def browser_version(path: str) -> str:
    """The browser's name and version, as it reports them; empty if it does not run."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.partition(" built on ")[0].strip()


def wants_browser(settings: "Settings") -> bool:
    return settings.render.mode != "off" or bool(settings.render.include)
