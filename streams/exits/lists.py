"""Lists of proxies, as providers give them: a file or the answer of a URL, one proxy a line."""

import re
from collections.abc import Iterator
from urllib.parse import quote

from .ways import Exit, read_exit

MOST_EXITS = 100_000  # Of a list

# HOST:PORT, or HOST:PORT:USER:PASSWORD as many providers write it.
_BARE = re.compile(r"([\w.-]+|\[[\da-fA-F:.]+\]):(\d{1,5})(?::([^:/@\s]+):(\S+))?")


def read_list(text: str) -> tuple[Exit, ...]:
    """The exits of a list: each line is as in `exits.proxies`, HOST:PORT, or HOST:PORT:USER:PASSWORD.

    Raises: ValueError: a line is none of these, or there is none; the message has its number, and not the line.
    """
    exits = tuple(dict.fromkeys(_exits(text)))
    if not exits:
        raise ValueError("it has no proxies")
    return exits


def _exits(text: str) -> Iterator[Exit]:
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        if number > MOST_EXITS:
            raise ValueError(f"it has more than {MOST_EXITS:,} lines")
        try:
            yield read_exit(_as_url(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def _as_url(line: str) -> str:
    bare = _BARE.fullmatch(line)
    if bare is None:
        return line
    login = f"{quote(bare[3], '')}:{quote(bare[4], '')}@" if bare[3] else ""
    return f"http://{login}{bare[1]}:{bare[2]}"
