"""The rules of a robots.txt, read as Google's open-source parser reads it (RFC 9309 and its documented leniencies).

Own code instead of a library: libraries differ from Google in byte order marks, in which lines end a group, and in
percent-encoding, and an answer must cost microseconds because every dispatch asks.

Where the RFC says more than Google does, it is followed: escapes are compared whatever their spelling (2.2.2; Google
compares letters as they stand), and `/robots.txt` itself is always allowed. Beyond both: files in UTF-16 are read,
agents may have digits in their names, and our own may be given with its version.
"""

import codecs
import hashlib
import math
import re
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import Self

from .robots_patterns import Matcher, Rule, path_of

MAX_BYTES = 500 * 1024  # RFC 9309 2.5: at least 500 KiB must be parsed; the rest is cut, not an error

MAX_TTL_S = 86_400.0  # RFC 9309 2.4: rules should not be used longer, whatever the setting says

# A longer line is cut: Google's own limit, a C string in eight times the longest URL of the old browsers.
MAX_LINE_BYTES = 2083 * 8 - 1

MAX_SITEMAPS = 1_000  # Sitemap lines that are kept for one user agent, the first ones of the file

# Memory of all rules together, about: those of 20,000 hosts with usual files, or of 10 with the worst.
HELD_BYTES = 64 << 20

LARGE_FILE = 64 * 1024
READ_BYTE_S = 0.3e-6  # CPU seconds a byte for reading a file: 0.15 s for the largest

READING_SHARE = 0.1  # Share of CPU time for reading large files again; a host that must wait rests meanwhile

# A line whose key may be a known one; other lines are skipped at the speed of memory.
_LINE = re.compile(rb"^[ \t\x0b\x0c\x00]*+((?:al|di|us|si|cr)[^\n]*)", re.MULTILINE | re.IGNORECASE)

# The part of a line after a NUL, which Google's parser does not see because its lines are C strings.
_AFTER_NUL = re.compile(rb"(?<=[!-\xff])[ \t]*+\x00[^\n]*+")

_TOKEN = re.compile(r"[A-Za-z_-]*")
_WHOLE_TOKEN = re.compile(r"[\w-]*")
_MARKS = (b"\xef\xbb\xbf", b"\xef\xbb", b"\xef")
_BLANK = b" \t\x0b\x0c\x00"
_KINDS: dict[str, tuple[str, ...]] = {
    "agent": ("user-agent", "useragent", "user agent"),
    "sitemap": ("sitemap", "site-map"),
    "allow": ("allow",),
    "disallow": ("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"),
    "delay": ("crawl-delay", "crawl delay", "crawldelay"),
}


class _Group:
    """User agents, their rules (perhaps shared with the group before), and their own delays."""

    __slots__ = ("agents", "closed", "delays_s", "is_for_all", "rules", "whole")

    def __init__(self, rules: list[Rule]) -> None:
        self.agents: set[str] = set()
        self.whole: set[str] = set()
        self.is_for_all = False
        self.closed = False
        self.rules = rules
        self.delays_s: list[float] = []


class RobotsRules:
    """A parsed robots.txt.

    Attributes:
        size_bytes: Their memory, about; known after `keep_only`.
        is_asked: Whether they were used since this was set to False.
        is_gone: They were evicted, and must be read again before use.
    """

    def __init__(self, groups: list[_Group], sitemaps: list[str]) -> None:
        self._groups = groups
        self._matchers: dict[str, Matcher] = {}
        self.sitemaps = sitemaps
        self.size_bytes = 0
        self.is_asked = False
        self.is_gone = False
        self._is_whole = True

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """The rules in a file; never raises, whatever the bytes."""
        groups: list[_Group] = []
        sitemaps: list[str] = []
        for kind, value in _lines(body):
            if kind == "sitemap":
                sitemaps.append(value)
            elif kind == "agent":
                if not groups or groups[-1].closed:
                    groups.append(_Group([]))
                elif groups[-1].delays_s:  # a delay counts for the agents above it; only a rule ends their group
                    groups.append(_Group(groups[-1].rules))
                _add_agent(groups[-1], value)
            elif not groups:
                continue
            elif kind == "delay":
                _add_delay(groups[-1], value)
            else:
                groups[-1].closed = True
                groups[-1].rules.append((value, kind == "allow"))
        return cls(groups, sitemaps)

    @classmethod
    def disallow_all(cls) -> Self:
        """The rules while a robots.txt cannot be reached (RFC 9309 2.3.1.4)."""
        return cls.parse(b"User-agent: *\nDisallow: /")

    def allowed(self, url: str, token: str) -> tuple[bool, str]:
        """Whether a URL may be fetched, and the rule that says so, empty when none does.

        Args:
            url: WHATWG-serialised, so that it is percent-encoded.
            token: Our product token; what follows its letters (`/2.1`) does not count.
        """
        self.is_asked = True
        path = path_of(url)
        if path == "/robots.txt":  # RFC 9309 2.2.2: implicitly allowed
            return True, ""
        line = self.said_to(token).deciding(path)
        return (True, "") if line is None else (line[1], _text(line))

    def crawl_delay_s(self, token: str) -> float | None:
        """The Crawl-delay that our groups ask for, the longest of several; None when none does."""
        return self.said_to(token).delay_s

    def lines(self, token: str) -> Iterator[str]:
        """The lines that apply to a product token, those without a wildcard first; of two that are equal, one."""
        return map(_text, self.said_to(token).lines())

    def keep_only(self, token: str) -> None:
        """Forget the rules of all other tokens; `is_for` is then false for them."""
        matcher = self.said_to(token)
        self._groups, self._is_whole = [], False
        del self.sitemaps[MAX_SITEMAPS:]
        self.size_bytes = 1000 + matcher.size_bytes + sum(60 + len(sitemap) for sitemap in self.sitemaps)

    def is_for(self, token: str) -> bool:
        """Whether the rules of a product token are here; otherwise the file must be read again."""
        return not self.is_gone and (self._is_whole or token in self._matchers)

    def learn(self, token: str, same: "RobotsRules") -> None:
        self._matchers[token] = same.said_to(token)
        self.size_bytes += same.size_bytes

    def let_go(self) -> None:
        self.is_gone = True
        self._groups, self._matchers, self.sitemaps = [], {}, []

    def said_to(self, token: str) -> Matcher:
        """The rules of a product token."""
        matcher = self._matchers.get(token)
        if matcher is None:
            assert not self.is_gone, "rules that were let go would allow all"
            assert self._is_whole, "rules kept for other tokens would allow all"
            matcher = self._matchers[token] = self._compiled(token)
        return matcher

    def _compiled(self, token: str) -> Matcher:
        name = product_token(token)
        whole = _whole_token(token)
        if whole != name:
            groups = [group for group in self._groups if whole in group.whole]
            groups = groups or [group for group in self._groups if name and name in group.whole]
        else:
            groups = [group for group in self._groups if name and name in group.agents]
        if not groups:
            groups = [group for group in self._groups if group.is_for_all]
        shared = {id(group.rules): group.rules for group in groups}.values()
        lines = (line for rules in shared for line in rules)
        return Matcher(lines, [delay_s for group in groups for delay_s in group.delays_s])


class SharedRules:
    """Rules of files, shared by all hosts with the same file, as the hosts of one platform have.

    A file of 500 KiB is read in 0.15 s and takes up to 6 MB, so there is one bound for all hosts. Rules that were not
    used since the last eviction are evicted first (second chance). Their hosts read the file again before use.

    Attributes:
        size_bytes: Memory of all rules, about.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, RobotsRules] = OrderedDict()
        self._next_at = 0.0
        self.size_bytes = 0

    def wait_s(self, body: bytes, token: str, now: float) -> float:
        """Seconds until a file that was read before may be read again; 0 for now, or if it need not be.

        Args:
            now: By any clock.
        """
        if len(body) <= LARGE_FILE:
            return 0.0
        rules = self._known.get(_digest(body))
        if rules is not None and rules.is_for(token):
            return 0.0
        if now >= self._next_at:
            self._next_at = now + len(body) * READ_BYTE_S / READING_SHARE
            return 0.0
        return self._next_at - now

    def rules(self, body: bytes, token: str) -> RobotsRules:
        """The rules in a file, read once for each token until they are evicted."""
        key = _digest(body)
        rules = self._known.get(key)
        if rules is not None and rules.is_for(token):
            rules.is_asked = True
            return rules
        read = RobotsRules.parse(body)
        read.keep_only(token)
        self._make_room(read.size_bytes)
        rules = self._known.get(key)
        if rules is None:
            rules = self._known[key] = read
        else:
            rules.learn(token, read)
        self.size_bytes += read.size_bytes
        return rules

    def _make_room(self, size_bytes: int) -> None:
        while self._known and self.size_bytes + size_bytes > HELD_BYTES:
            key, rules = self._known.popitem(last=False)
            if rules.is_asked:
                rules.is_asked = False
                self._known[key] = rules
            else:
                self.size_bytes -= rules.size_bytes
                rules.let_go()


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


@lru_cache(1024)
def product_token(user_agent: str) -> str:
    """The product token of a user agent, in lower case: groups are matched by it."""
    found = _TOKEN.match(user_agent.strip())
    return found[0].lower() if found else ""


def _whole_token(user_agent: str) -> str:
    """The token with digits and letters of all languages, beyond the standard: `MJ12bot` is not `mj`."""
    found = _WHOLE_TOKEN.match(user_agent.strip())
    return found[0].lower() if found else ""


def _lines(body: bytes) -> Iterator[tuple[str, str]]:
    """Kind and value of each line that has both."""
    body = body[:MAX_BYTES]
    if body[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # Google reads nothing then; the site meant something
        body = body.decode("utf-16", "replace").encode() if b"\0" in body[:64] else body[2:]
    mark = next((mark for mark in _MARKS if body.startswith(mark)), b"")
    kinds: dict[bytes, str] = {}
    text = body[len(mark) :].replace(b"\r", b"\n")
    if b"\0" in text:
        text = _AFTER_NUL.sub(b"", text)
    for line in _LINE.findall(text):
        text = (line if len(line) <= MAX_LINE_BYTES else line[:MAX_LINE_BYTES]).partition(b"#")[0].rstrip(_BLANK)
        key, colon, value = text.partition(b":")
        if not colon:
            words = text.replace(b"\t", b" ").split()
            if len(words) != 2:  # "Disallow /path" is read as if it had its colon; a sentence is not
                continue
            key, value = words
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = _kind(key)
        if kind:
            yield kind, value.strip().decode("utf-8", "surrogateescape")


def _kind(key: bytes) -> str:
    word = key.strip().decode("latin-1").lower()
    return next((kind for kind, spellings in _KINDS.items() if word.startswith(spellings)), "")


def _add_agent(group: _Group, value: str) -> None:
    if value == "*" or (value[:1] == "*" and value[1:2].isspace()):
        group.is_for_all = True
    else:
        group.agents.add(product_token(value))
        group.whole.add(_whole_token(value))


def _add_delay(group: _Group, value: str) -> None:
    delay_s = _seconds(value)
    if delay_s is not None:
        group.delays_s.append(delay_s)


def _text(line: Rule) -> str:
    value, allows = line
    return f"{'Allow' if allows else 'Disallow'}: {value}".encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _seconds(value: str) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
