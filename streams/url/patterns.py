"""Expressions of a job's scope and of its rendering: RE2, with a bound on the work that one URL can cost.

RE2 answers in linear time, but its slow way takes a step for each byte of the text and each instruction of the program.
A counted repetition writes a large program in few characters, so the program is bounded, and the URL too.
"""

import re
from collections.abc import Iterable

import re2

from crawlog.streams.errors import Misconfigured

MAX_PROGRAM = 2000
"""Instructions of all expressions of one setting. A character of an expression is one as a rule, `.` is 8, and
`.{1,200}` 1,803. The worst ones of this size took 40 to 110 ms for a URL of 2,083 characters, of 90,000 1.5 s."""

MAX_URL_LENGTH = 8192
"""Longest URL that a job can take, characters. RFC 9110 4.1 asks for 8,000 at least."""

_HOSTS_HEAD, _HOSTS_TAIL = r"^https?://(?:[^/?#]*\.)?(?:", r")(?::\d+)?(?:[/?#]|$)"


def domains_pattern(domains: Iterable[str]) -> str:
    """The expression for URLs of some hosts and their sub-domains (`scope.include`); the same for equal sets."""
    ordered = (
        sorted(domains) if isinstance(domains, set | frozenset) else domains
    )  # each process has another order of a set
    return _HOSTS_HEAD + "|".join(re.escape(name.lower().strip(".")) for name in ordered) + _HOSTS_TAIL


def any_of(setting: str, expressions: tuple[str, ...]) -> "re2._Regexp[str] | None":
    """One expression that matches if any of them matches; None if there are none.

    Args:
        setting: The name of the setting, for the error.

    Raises: Misconfigured: one of them is not RE2 syntax, or their program is too large.
    """
    try:
        return compiled(expressions)
    except ValueError as error:
        raise Misconfigured(f"{setting}: {error}") from None


def compiled(expressions: tuple[str, ...]) -> "re2._Regexp[str] | None":
    """As `any_of`. Raises: ValueError: one of them is not RE2 syntax, or their program is too large."""
    if not expressions:
        return None
    options = re2.Options()
    options.log_errors = False  # RE2 writes to standard error by itself
    options.never_capture = True  # groups would have the match searched a second time
    size = 0
    for expression in expressions:
        try:
            program = re2.compile(expression, options)
        except re2.error as error:
            raise ValueError(f"{expression!r:.200} is not an RE2 expression: {_text(error)}") from None
        size += 0 if _is_list_of_hosts(expression) else program.programsize
        if size > MAX_PROGRAM:
            raise ValueError(
                f"too costly: with {expression!r:.200} the expressions have {size:,} instructions, more than "
                f"{MAX_PROGRAM:,}.\nA counted repetition such as {{1000}} has as many copies: use + or * there."
            )
    try:
        return re2.compile("|".join(f"(?:{expression})" for expression in expressions), options)
    except re2.error as error:  # long lists of hosts
        raise ValueError(f"the expressions together are too large: {_text(error)}") from None


def _is_list_of_hosts(expression: str) -> bool:
    """Whether this is a `domains_pattern`: of its thousands of instructions a URL is at a few at a time."""
    names = expression.removeprefix(_HOSTS_HEAD).removesuffix(_HOSTS_TAIL)
    return expression == domains_pattern(name.replace("\\", "") for name in names.split("|"))


def _text(error: Exception) -> str:
    """An error of RE2, which holds bytes."""
    cause = error.args[0] if error.args else ""
    return cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
