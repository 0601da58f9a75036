"""Jobs that other commands gave than the one that started the workers: each is asked for as its own record says."""

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.crawls import data, there
from tests.support.processes import crawlog, done, until
from tests.support.sites import Answer, Threaded

__all__ = ["data", "there"]

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class Site:
    """Pages by job, `/JOB/1` to `/JOB/9`, each linking to the next; notes when each is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str]] = []
        self._server = Threaded(self._answer)
        self.origin = self._server.origin

    def _answer(self, path: str) -> Answer:
        self.asked.append((time.monotonic(), path))
        if path == "/robots.txt":
            return 200, "text/plain", b"User-agent: shy\nDisallow: /shy/3\n\nUser-agent: *\nDisallow: /"
        job, _, number = path.strip("/").partition("/")
        if number.isdigit() and int(number) < 10:
            return 200, "text/html", f'<a href="/{job}/{int(number) + 1}">next</a>'.encode()
        return 404, "text/html", b""

    def times(self, start: str) -> list[float]:
        """When pages were asked for whose paths begin so."""
        return [at for at, path in self.asked if path.startswith(start)]

    def heard(self, start: str, header: str) -> set[str | None]:
        """The values of a header of requests for paths that begin so."""
        return {headers.get(header) for path, headers in self._server.heard if path.startswith(start)}

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


@pytest.fixture
def site() -> Iterator[Site]:
    """A site of this test alone."""
    made = Site()
    yield made
    made.close()


def told(*arguments: object) -> str:
    """What a command says on standard output."""
    process = crawlog(*arguments)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def seeded(url: str, job: str, data: Path, there: list[str], **settings: object) -> None:
    """Gives a job to workers that run; settings with `__` for the dot."""
    settings["network__allow_private"] = "true"
    pairs = [f"-s{key.replace('__', '.')}={value}" for key, value in settings.items()]
    done(crawlog("seed", url, "--job", job, "--data", data, *there, *pairs))


@pytest.mark.long
def test_a_job_given_to_running_workers_keeps_its_own_delay(site: Site, data: Path, there: list[str]) -> None:
    """The workers' own is a hundredth of it, and stays that of jobs that ask for so little."""
    polite = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.01", "-s", "politeness.ip_rate=0"]
    done(crawlog("up", "--data", data, *there, *polite))
    seeded(f"{site.origin}/slow/1", "slow", data, there, politeness__delay_s=1, robots__obey="false")
    until(lambda: len(site.times("/slow/")) >= 4, "four pages")
    times = site.times("/slow/")
    assert min(later - earlier for earlier, later in pairwise(times)) > 0.98


@pytest.mark.long
def test_jobs_that_meet_on_a_host_are_each_asked_for_as_their_records_say(
    site: Site, data: Path, there: list[str]
) -> None:
    """One is slow and obeys robots.txt by its own token, one is fast and does not; the greater delay is both's."""
    polite = ["-s", "network.allow_private=true", "-s", "politeness.ip_rate=0", "-s", "fetch.user_agent=worker"]
    done(crawlog("up", "--data", data, *there, *polite))
    shy = {
        "politeness__delay_s": 0.4,
        "robots__token": "shy",
        "fetch__user_agent": "shy/1",
        "fetch__headers": "X-Of: shy",
    }
    seeded(f"{site.origin}/shy/1", "shy", data, there, **shy)
    until(lambda: site.times("/shy/"), "the first page of the slow job")
    seeded(
        f"{site.origin}/bold/1",
        "bold",
        data,
        there,
        politeness__delay_s=0,
        robots__obey="false",
        fetch__user_agent="bold",
    )
    until(lambda: len(site.times("/bold/")) == 10 and site.times("/shy/2"), "all pages of the fast job")
    assert not site.times("/shy/3"), "its token may not"
    assert site.heard("/shy/", "User-Agent") == {"shy/1"}
    assert site.heard("/robots.txt", "User-Agent") == {"shy/1"}
    assert site.heard("/shy/", "X-Of") == {"shy"}
    assert (site.heard("/bold/", "User-Agent"), site.heard("/bold/", "X-Of")) == ({"bold"}, {None})
    times = site.times("/")
    slow = [index for index, (_, path) in enumerate(site.asked) if path.startswith("/shy/")]
    assert all(times[index + 1] - times[index] > 0.39 for index in slow if index + 1 < len(times))


@pytest.mark.long
def test_what_the_workers_may_not_ask_stays_queued_for_those_that_may(site: Site, data: Path, there: list[str]) -> None:
    """`status` and `why` say which setting they would need; workers that have it crawl on."""
    here = ["--data", data, *there, "-s", "politeness.delay_s=0", "-s", "robots.obey=false"]
    done(crawlog("up", *here))
    seeded(f"{site.origin}/shut/1", "shut", data, there, robots__obey="false", politeness__delay_s=0)

    def needs() -> dict[str, int]:
        jobs = json.loads(told("status", "--json", *here[:2], *there))["jobs"]
        found: dict[str, int] = next((job.get("needs") for job in jobs if job["name"] == "shut"), {})
        return found

    until(lambda: needs() == {"network.allow_private=true": 1}, "the report of what is needed")
    assert "1 wait for a worker with network.allow_private=true" in told("status", *here[:2], *there)
    why = told("why", f"{site.origin}/shut/1", *here[:2], *there)
    assert "now queued in job shut" in why
    assert "1 wait for a worker with network.allow_private=true, as its owner" in why
    assert site.asked == []
    done(crawlog("down", "--data", data))
    done(crawlog("up", *here, "-s", "network.allow_private=true"))
    until(lambda: len(site.times("/shut/")) == 10, "all pages")
