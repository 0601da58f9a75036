"""`crawlog shell`: a Python prompt with a page's response; IPython where it is installed."""

import code
import importlib
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crawlog.streams.errors import CrawlError, Misconfigured
from crawlog.streams.spiders import Request, Response, StoredPage, bare_record, opened

if TYPE_CHECKING:
    from crawlog.schemas.requests import RequestRecord

Fetch = Callable[[str, "RequestRecord | None"], StoredPage]

BANNER = """
response   {response!r}
request    {request!r}
fetch(x)   asks for a URL or a request, and makes its page the response; response.follow(…) makes one
"""


NAME = "<shell>"
"""Of the user's code in tracebacks."""


class Shell:
    """The names of a shell.

    Args:
        fetch: Asks for a page.

    Attributes:
        names: By name; `fetch` replaces `response` and `request` in it.
    """

    def __init__(self, page: StoredPage | None, fetch: Fetch) -> None:
        self._fetch = fetch
        self.names: dict[str, Any] = {"Request": Request, "fetch": self.fetch, "response": None, "request": None}
        if page is not None:
            self._show(page)

    def fetch(self, asked: "str | Request") -> Response:
        """Ask for a URL or a request; `response` is then its page."""
        if isinstance(asked, str):
            return self._show(self._fetch(asked, None))
        return self._show(self._fetch(asked.url, bare_record(asked)))

    def run(self, line: str) -> str:
        """The value of an expression, as the prompt shows it; empty for a statement.

        Raises: CrawlError: of `fetch`. Misconfigured: any other error of the line.
        """
        try:
            return self._value(line)
        except (CrawlError, BrokenPipeError):
            raise
        except Exception as error:
            raise Misconfigured(_told(line, error)) from error

    def prompt(self) -> None:
        """Ask for lines until the user leaves."""
        banner = BANNER.format(**self.names)
        try:
            ipython = importlib.import_module("IPython")
        except ModuleNotFoundError:
            code.interact(banner, local=self.names, exitmsg="")
        else:
            ipython.start_ipython(argv=["--no-banner"], user_ns=self.names)

    def _value(self, line: str) -> str:
        try:
            compiled = compile(line, NAME, "eval")
        except SyntaxError:
            exec(compile(line, NAME, "exec"), self.names)  # noqa: S102  # the user's own line
            return ""
        return repr(eval(compiled, self.names))  # noqa: S307  # the user's own line

    def _show(self, page: StoredPage) -> Response:
        response = opened(page)
        self.names |= {"response": response, "request": response.request}
        return response


def _told(code: str, error: Exception) -> str:
    """An error of the user's code, with the line of it that raised the error."""
    from crawlog.agents.sandbox import error_line

    at = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == NAME]
    at += [error.lineno or 0] if isinstance(error, SyntaxError) and error.filename == NAME else []
    number = at[-1] if at else 0
    return "\n  ".join([f"-c: {error_line(error)}", *map(str.strip, code.splitlines()[number - 1 : number])])
