"""Jars of a worker: rows under what no done has named yet."""

import pytest

from crawlog.agents.client import cookie_jars
from crawlog.agents.client.cookie_jars import CookieJars, StoredJar
from crawlog.streams.session.cookies import NEVER, StoredCookie

URL, NOW = "http://www.a.com/", 1_700_000_000.0
SID = StoredCookie("sid", "1", "a.com", "/", False, False, NEVER)


class Rows:
    """The rows of one state after the other, as owners come and go."""

    def __init__(self) -> None:
        self.cookies: tuple[StoredCookie, ...] = (SID,)
        self.fold: object | None = object()
        self.epoch = 0
        self.ownership = object()
        self.read = 0

    def __call__(self, _job: str, _url: str, _name: str) -> StoredJar | None:
        """The row of every jar."""
        return StoredJar(self.fold, self.epoch, self._read, self.ownership) if self.fold is not None else None

    def _read(self) -> tuple[StoredCookie, ...]:
        self.read += 1
        return self.cookies


def sent(jars: CookieJars, name: str = "") -> str:
    """The cookies of a request."""
    return jars.of("j", URL, name).header(URL, NOW)


def test_a_jar_is_read_once_and_then_in_memory() -> None:
    """Another host of its domain has the same one; another name and another job have others."""
    rows = Rows()
    jars = CookieJars(rows)
    assert [sent(jars), sent(jars)] == ["sid=1"] * 2
    assert jars.of("j", "http://shop.a.com/") is jars.of("j", URL)
    assert len({id(jars.of(job, URL, name)) for job, name in (("j", ""), ("j", "x"), ("k", ""))}) == 3
    assert rows.read == 3


def test_another_state_is_read_again_with_what_no_done_has_named() -> None:
    """A row that lacks an answer of now is not older than memory, but what was logged may have changed elsewhere."""
    rows = Rows()
    jars = CookieJars(rows)
    jars.of("j", URL).keep(URL, ["told=1"], NOW)
    assert [one.name for one in jars.changes("j", URL)] == ["told"]
    jars.of("j", URL).keep(URL, ["untold=1"], NOW)
    rows.fold, rows.cookies = object(), (SID._replace(value="2"),)
    assert sent(jars) == "sid=2; untold=1"
    assert [one.name for one in jars.changes("j", URL)] == ["untold"]
    assert jars.changes("j", URL) == ()


def test_another_ownership_begins_at_its_row() -> None:
    """The cookie of an answer that was aborted before it is older than what another owner's dones have named."""
    rows = Rows()
    jars = CookieJars(rows)
    jars.of("j", URL).keep(URL, ["sid=untold"], NOW)
    rows.fold, rows.ownership, rows.cookies = object(), object(), (SID._replace(value="2"),)
    assert (sent(jars), jars.changes("j", URL)) == ("sid=2", ())


def test_another_epoch_begins_at_its_row() -> None:
    """Nothing of the former one comes along."""
    rows = Rows()
    jars = CookieJars(rows)
    jars.of("j", URL).keep(URL, ["untold=1"], NOW)
    rows.epoch, rows.cookies = 1, ()
    assert (sent(jars), jars.changes("j", URL)) == ("", ())


def test_a_jar_stays_while_its_partition_is_elsewhere() -> None:
    """Requests that end amid a rebalance find it; so does one without a row: a login form's."""
    rows = Rows()
    jars = CookieJars(rows)
    sent(jars)
    rows.fold = None
    assert sent(jars) == "sid=1"
    form = jars.of("j", URL, "form", is_stored=False)
    form.keep(URL, ["sid=9"], NOW)
    assert jars.of("j", URL, "form", is_stored=False) is form


def test_a_jar_without_a_row_ends_with_its_epoch() -> None:
    """And with nothing else: another state, or none for a while, logs nobody out."""
    rows = Rows()
    jars = CookieJars(rows)

    def form() -> str:
        return jars.of("j", URL, is_stored=False).header(URL, NOW)

    rows.fold = None
    jars.of("j", URL, is_stored=False).keep(URL, ["sid=9"], NOW)
    for rows.fold in (object(), object(), None, object()):
        assert form() == "sid=9"
    rows.epoch = 1
    assert form() == ""
    assert rows.read == 0


def test_a_jar_that_was_dropped_from_memory_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used one is dropped."""
    rows = Rows()
    jars = CookieJars(rows)
    monkeypatch.setattr(cookie_jars, "MOST_JARS", 2)
    for name in ("a", "b", "a", "c", "a", "b"):
        assert sent(jars, name) == "sid=1"
    assert rows.read == 4
