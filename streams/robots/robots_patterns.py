"""The rules of one user agent in a robots.txt, ready to be asked: the longest pattern that matches a path decides.

Patterns and paths are compared in one spelling, whatever each escapes (RFC 9309 2.2.2). A look-up takes microseconds,
because every dispatch asks.
"""

import re
from collections.abc import Iterable, Iterator

# Literals between wildcards kept for one user agent, the first ones of the file: they bound the cost of a query. The
# most of 1,200 real files is 1,000; with so many as here a query takes one to three milliseconds.
MAX_PIECES = 5_000

_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")

Rule = tuple[str, bool]  # The value of an Allow or Disallow line, and whether it allows

# A pattern with wildcards: its length, its literals between the stars (with the `$`), and its line.
_Wild = tuple[int, list[str], Rule]


class Matcher:
    """The rules of one user agent, ready for queries: the longest pattern wins, Allow wins a tie.

    A pattern is looked up by its text before the first wildcard: one look-up for each distinct length. A pattern that
    ends in `$` and has no star is looked up by the path with a `$` appended.
    """

    def __init__(self, lines: Iterable[Rule], delays_s: list[float]) -> None:
        self.delay_s = max(delays_s) if delays_s else None
        plain: dict[str, Rule] = {}
        starred: dict[str, Rule] = {}
        for pattern, line in _patterns(lines):
            best = starred if "*" in pattern else plain
            if line[1] or pattern not in best:
                best[pattern] = line
        self._lengths = sorted({len(pattern) for pattern in plain if pattern[-1] != "$"}, reverse=True)
        self._has_ends = any(pattern[-1] == "$" for pattern in plain)
        self._plain = plain
        self._wilds = wilds = _first_pieces(starred)
        self._heads = sorted({len(head) for head in wilds})
        self.size_bytes = sum(150 + len(pattern) for pattern in plain) + sum(
            340 + 60 * len(pieces) + 2 * length for wild in wilds.values() for length, pieces, _ in wild
        )

    def lines(self) -> Iterator[Rule]:
        """The lines that it goes by."""
        yield from self._plain.values()
        for wilds in self._wilds.values():
            yield from (line for _, _, line in wilds)

    def deciding(self, path: str) -> Rule | None:
        """The line that decides about a path, None when none matches."""
        most, best = self._plain_match(path)
        for size in self._heads:
            for length, pieces, line in self._wilds.get(path[:size], ()):
                if length < most:
                    break
                if (length > most or not (best and best[1])) and _matches(path, pieces):
                    most, best = length, line
                    break  # the next ones are shorter, or as long and no Allow
        return best

    def _plain_match(self, path: str) -> tuple[int, Rule | None]:
        get = self._plain.get
        if self._has_ends and (line := get(path + "$")) is not None:
            return len(path) + 1, line
        for length in self._lengths:
            start = path[:length]
            line = get(start)
            if line is not None:
                return len(start), line
        return 0, None


def _first_pieces(starred: dict[str, Rule]) -> dict[str, list[_Wild]]:
    """Patterns with wildcards by their beginnings, up to `MAX_PIECES`."""
    wilds: dict[str, list[_Wild]] = {}
    count = 0
    for pattern, line in starred.items():
        pieces = _pieces(pattern)
        count += len(pieces) - (pieces[-1][-1:] in ("", "$"))
        if count <= MAX_PIECES:
            wilds.setdefault(pieces[0], []).append((len(pattern), pieces, line))
    for wild in wilds.values():
        wild.sort(key=lambda one: (-one[0], not one[2][1]))
    return wilds


def _patterns(lines: Iterable[Rule]) -> Iterator[tuple[str, Rule]]:
    """The escaped patterns of lines, without empty ones, which mean nothing."""
    for line in lines:
        pattern = _escaped(line[0])
        if pattern:
            yield pattern, line
        if line[1]:
            head, slash, last = pattern.rpartition("/")
            if slash and last.startswith("index.htm"):  # Google: allowing a folder's index allows the folder
                yield f"{head}/$", line


def _escaped(value: str) -> str:
    """A pattern in the spelling of `path_of`: only necessary escapes, in upper case."""
    if "$" in value[:-1]:
        value = value[:-1].replace("$", "%24") + value[-1:]
    if value.isascii() and "%" not in value:
        return value
    raw = _BEYOND_ASCII.sub(lambda m: b"%%%02X" % m[0][0], value.encode("utf-8", "surrogateescape"))
    return _ESCAPE.sub(_unreserved, raw.decode("ascii"))


def _unreserved(escape: re.Match[str]) -> str:
    """An escape in upper case, or the character that means the same (RFC 9309 2.2.2: `%62%61%7A` is `baz`)."""
    char = chr(int(escape[0][1:], 16))
    return char if (char.isascii() and char.isalnum()) or char in _ALIKE else escape[0].upper()


def path_of(url: str) -> str:
    """Path, parameters and query of a URL."""
    start = url.find("//")
    start = start + 2 if start >= 0 else 0
    end = url.find("#", start)
    rest = url[start:end] if end >= 0 else url[start:]
    found = _PATH_START.search(rest)
    if found is None:
        return "/"
    path = rest[found.start() :]
    if "%" in path:
        path = _ESCAPE.sub(_unreserved, path)
    if "$" in path or "*" in path:  # RFC 9309 2.2.3: a pattern has these as %24 and %2A
        path = path.replace("$", "%24").replace("*", "%2A")
    return path if path[0] == "/" else "/" + path


_ESCAPE = re.compile(r"%[0-9a-f]{2}", re.IGNORECASE)
# Characters that mean the same escaped or not: those that need no escape (RFC 3986 2.3), and those that no URI has as
# they are but patterns do, while the URL standard leaves some in a path, others in a query, as it does the apostrophe.
_ALIKE = frozenset("-._~" + "".join(map(chr, range(1, 33))) + "\"'<>^`{|}\x7f")

_PATH_START = re.compile(r"[/?;]")


def _pieces(pattern: str) -> list[str]:
    """The literals between the stars of a pattern. The first and the last may be empty; the last may be only a `$`."""
    head, *middle, tail = pattern.split("*")
    return [head, *filter(None, middle), tail]


def _matches(path: str, pieces: list[str]) -> bool:
    """Whether a path with a pattern's beginning matches the rest, in linear time: each literal at its first place."""
    at = len(pieces[0])
    if len(pieces) > 2:
        for literal in pieces[1:-1]:
            at = path.find(literal, at)
            if at < 0:
                return False
            at += len(literal)
    tail = pieces[-1]
    if path.find(tail, at) >= 0:  # never with its `$`, which no path has
        return True
    return tail[-1:] == "$" and len(path) - at >= len(tail) - 1 and path.endswith(tail[:-1])
