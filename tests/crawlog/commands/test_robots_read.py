"""What `crawlog why` says of a robots.txt that this machine has read."""

from pathlib import Path

import pytest

from crawlog.commands.why_evidence import robots_verdict
from crawlog.streams.fetch.robots_answer import Counts, Rest, key, pack, rest_key
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state.partition import Database, StateMemory

HOST = "http://a.example:80"
WAY, OTHER_WAY = b"\x01\x02 way", b"\xff"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A data folder of its own."""
    base = Settings()
    return base.model_copy(update={"run": base.run.model_copy(update={"data": tmp_path})})


def verdict(settings: Settings, *rows: tuple[bytes, Counts | Rest], path: str = "/p/x") -> str:
    """What is said once these rows are in the cache of partition 3."""
    database = Database(settings.run.data / "state" / "3", StateMemory(8))
    for name, counts in rows:
        database.cache(name, pack(counts))
    database.close()
    return robots_verdict(settings, 3, HOST, f"http://a.example{path}")


def test_an_answer_that_is_no_robots_txt_is_known_too(settings: Settings) -> None:
    """It lies under the way of asking: most sites without a robots.txt answer 404."""
    said = verdict(settings, (key(HOST, WAY), Counts(60.0, 404, b"")))
    assert said == f"robots.txt of {HOST} allows it; HTTP 404, read 1970-01-01 00:01:00"


def test_the_newest_answer_of_all_ways_of_asking_is_told(settings: Settings) -> None:
    """A host at a port that begins with the same digits is another one."""
    rules = Counts(30.0, 200, b"User-agent: *\nDisallow: /p\nCrawl-delay: 2.5")
    older, other = Counts(20.0, 403, b""), Counts(90.0, 404, b"")
    said = verdict(settings, (key(HOST, WAY), older), (key(HOST), rules), (key(f"{HOST}80"), other))
    assert said.startswith(f"robots.txt of {HOST} forbids it (Disallow: /p), and wants 2.5 s between requests; HTTP")
    assert "forbids" not in verdict(settings, (key(HOST, OTHER_WAY), Counts(40.0, 403, b"")))


def test_what_was_never_read_is_not_known(settings: Settings) -> None:
    """Without a state, and with one that has other hosts."""
    unknown = f"the robots.txt of {HOST} is not known on this machine"
    assert robots_verdict(settings, 3, HOST, "http://a.example/") == unknown
    assert verdict(settings, (key("http://b.example:80"), Counts(1.0, 200, b""))) == unknown


def test_that_it_was_asked_for_in_vain_is_told_with_the_rest_after_that(settings: Settings) -> None:
    """Older rules count on in spite of that."""
    said = verdict(settings, (rest_key(HOST), Rest(60.0, 300.0)))
    in_vain = "could not be read at 1970-01-01 00:01:00; after that its host rests 300 s"
    assert said == f"the robots.txt of {HOST} {in_vain}"
    assert "allows it; HTTP 200" in verdict(settings, (key(HOST), Counts(30.0, 200, b"")))
