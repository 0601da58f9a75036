"""Pages that are the same, or nearly, under several URLs."""

import random

from crawlog.streams.parse.duplicates import PAGES, Twins

WORDS = [f"word{n}" for n in range(2000)]


def page(seed: int, words: int = 300, note: str = "") -> bytes:
    """A page of chosen words."""
    chosen = random.Random(seed).choices(WORDS, k=words)
    return f"<html><script>{note}</script><p class=x>{' '.join(chosen)} {note}</p>".encode()


def test_the_same_body_under_another_url_is_a_twin() -> None:
    """Of one host; the first one again is itself."""
    twins = Twins(near=False)
    assert not twins.is_one("a", "u1", b"x")
    assert twins.is_one("a", "u2", b"x")
    assert not twins.is_one("a", "u1", b"x")
    assert not twins.is_one("a", "u3", b"y")
    assert not twins.is_one("b", "u2", b"x")


def test_nearly_the_same_is_a_twin_where_asked_for() -> None:
    """A soft error that repeats the address; other pages are not."""
    twins = Twins(near=True)
    assert not twins.is_one("a", "u1", page(1, note="/not/found/1"))
    assert twins.is_one("a", "u2", page(1, note="/not/found/2"))
    assert not any(twins.is_one("a", f"v{seed}", page(seed)) for seed in range(2, 150))


def test_pages_without_words_are_twins_only_where_they_are_the_same() -> None:
    """Of frames and images they have no text that could be nearly alike."""
    twins = Twins(near=True)
    assert not twins.is_one("h", "http://h/1", b"<frame src=a><frame src=b>")
    assert not twins.is_one("h", "http://h/2", b"<img src=c>")
    assert twins.is_one("h", "http://h/3", b"<img src=c>")


def test_what_is_remembered_is_bounded() -> None:
    """The oldest page of a host is forgotten, and is then no twin."""
    twins = Twins(near=False)
    for number in range(PAGES + 1):
        twins.is_one("a", f"u{number}", b"%d" % number)
    assert not twins.is_one("a", "other", b"0")
    assert twins.is_one("a", "other", b"%d" % PAGES)
