"""Lines that crawlog's own spiders log, in their process: to standard error, with logger and level."""

import logging  # noqa: TID251  # sets up the user's own messages; crawlog writes none here
from pathlib import Path
from typing import Any

from .loading import FoundClass, is_installed
from .own_loading import project_folder

FORMAT = "[%(name)s] %(levelname)s: %(message)s"
"""Of a line; crawl.logs finds its level in it."""


class _UsersLines(logging.Filter):
    """Lets pass what the spider's project logs, and warnings of libraries. The spider's module is named as its file is.

    At level info a library may tell secrets: httpx logs each URL, with its tokens.
    """

    def __init__(self, found: FoundClass) -> None:
        super().__init__()
        folder = project_folder(found.file)
        self._name, self._shown = found.module.__name__, found.file.stem
        self._own = folder if (folder / "__init__.py").is_file() else found.file  # it may be installed itself

    def filter(self, record: logging.LogRecord) -> bool:
        """True for a line of the project, and for a warning or an error."""
        path = Path(record.pathname)
        if record.name == self._name:
            record.name = self._shown
        return record.levelno >= logging.WARNING or not is_installed(path) or path.is_relative_to(self._own)


def log_lines(found: FoundClass) -> None:
    """Write the spider's lines, from info up, to standard error, where the user has not set up `logging`.

    Python's last resort takes lines that no handler takes, so the user may set up `logging` at any time. It is for the
    spider's own process, after its module has run: of another process the logging is the user's.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(_UsersLines(found))
    logging.lastResort = handler
    set_up = logging.basicConfig

    def basic(**given: Any) -> None:
        """Python's own; `logging.info` and its like call it without arguments, and then it takes our handler."""
        if given:
            set_up(**given)
        elif not root.handlers:
            root.addHandler(handler)

    logging.basicConfig = basic
    if root.level == logging.WARNING:  # Python's default: the module has set no level
        root.setLevel(logging.INFO)
