"""`crawlog run`, `up` and `down` as a user calls them, on the real engine, against a site on loopback."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import msgspec
import psutil
import pytest
from confluent_kafka import TopicPartition

from crawlog.agents.seed.planting import plant
from crawlog.agents.seed.source import Source
from crawlog.commands.dead import redriven
from crawlog.schemas import urls as u
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import kafka_config, log_bounds
from crawlog.streams.control import apply_change, known_job, rewind_crawl, write_job
from crawlog.streams.dead_letters import LetterChoice
from crawlog.streams.engine import engine
from crawlog.streams.fleet import FleetView
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.overlay import Changes
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.read import read_partitions
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state.partition import Database, StateMemory
from crawlog.streams.state.verify import verify
from tests.support.crawls import PAGES, Numbered, data, on_folder, rows, run, site, there, workers
from tests.support.processes import crawlog, done, ended, until

__all__ = ["data", "site", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]


EVERY_PAGE = [str(number) for number in range(1, PAGES + 1)]


@pytest.mark.long
def test_a_run_ends_at_its_limit_a_higher_one_by_itself_and_again_says_so(site: Numbered, data: Path) -> None:
    """What was fetched is not fetched again: every page once. The third run asks the site for nothing."""
    code, summary, err = ended(run(site, data, "--max-pages", 5, delay_s=0.3))
    assert (code, summary["reason"]) == (0, "max_pages"), err
    assert 5 <= site.pages().total() < PAGES
    code, summary, err = ended(run(site, data))
    assert (code, summary["reason"], summary["epoch"], summary["rows"]) == (0, "finished", 0, PAGES), err
    assert sorted(rows(data), key=int) == EVERY_PAGE
    assert set(site.pages().values()) == {1}

    asked = site.asked.total()
    before = summary
    code, summary, err = ended(run(site, data))
    assert (code, summary["reason"], summary["rows"]) == (0, "already_finished", PAGES), err
    assert [summary[name] for name in ("fetched", "seen", "pages")] == [before["fetched"], before["seen"], 0]
    assert site.asked.total() == asked
    assert on_folder(data) == []


def flip(table: Path) -> None:
    """Some bytes all over a table become others."""
    content = bytearray(table.read_bytes())
    for at in range(0, len(content), 64):
        content[at] ^= 0xFF
    table.write_bytes(content)


def age(state: Path) -> None:
    """Make a state one of an older version."""
    database = Database(state, StateMemory(8))
    stored = database.get(r.META)
    if stored is not None:
        meta = msgspec.structs.replace(r.read_meta(stored), fold="0 of old")
        database.write(Changes({r.META: r.pack(meta)}))
    database.close()


@pytest.mark.long
def test_states_that_cannot_be_used_are_folded_again_and_the_terminal_says_so(
    site: Numbered, data: Path, there: list[str]
) -> None:
    """Those of the frontier are of an older version, the sink's is damaged: each page once, and FILE is whole."""
    done(run(site, data, "--max-pages", 5, *there, delay_s=0.3))
    states = [path for path in (data / "state").iterdir() if path.name.isdigit()]
    for state in states:
        age(state)
    tables = list(data.glob("sinks/*/state/*.sst"))
    for table in tables:
        flip(table)
    assert states
    assert tables
    code, summary, err = ended(run(site, data, *there))
    assert (code, summary["reason"], summary["rows"]) == (0, "finished", PAGES), err
    assert sorted(rows(data), key=int) == EVERY_PAGE
    assert set(site.pages().values()) == {1}
    assert list((data / "state").glob("aside-*"))
    assert err.count("the frontier's state is folded again from the log: it was of another version: format ") == 1
    assert err.count("the rows are read again from the log: the sink's state was damaged: ") == 1


@pytest.mark.long
def test_a_state_that_cannot_be_folded_again_ends_the_run_with_the_reason(
    site: Numbered, data: Path, cluster: Settings, there: list[str]
) -> None:
    """The log no longer begins at 0, and there are no snapshots: the worker is not started again and again."""
    done(run(site, data, "--max-pages", 5, *there, delay_s=0.3))
    states = [path for path in (data / "state").iterdir() if path.name.isdigit()]
    for state in states:
        age(state)
    admin, urls = Admin(cluster), Topics(cluster.kafka.prefix).urls
    trimmed = [TopicPartition(urls, int(state.name), 1) for state in states]
    for future in admin.client.delete_records(trimmed).values():
        admin.result(future)
    code, _, err = ended(run(site, data, *there))
    assert code == 2, err
    assert "begins at offset 1, and no snapshot goes on from there" in err
    assert "remove the folder" in err
    assert "started again" not in err
    assert not list((data / "state").glob("aside-*"))


def test_a_killed_run_goes_on_with_the_broker_that_it_left(site: Numbered, data: Path) -> None:
    """Its workers die with it, its broker does not; the same command adopts it."""
    process = run(site, data, delay_s=0.1)
    until(lambda: site.asked.total() > 8, "the crawl to begin")
    pids = list(workers(data).values())
    process.kill()
    process.communicate()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the workers to die")
    broker = on_folder(data)[0].pid
    second = run(site, data)
    until(lambda: workers(data), "the second run to work")
    assert [left.pid for left in on_folder(data)] == [broker]
    code, summary, err = ended(second)
    assert (code, summary["reason"]) == (0, "finished"), err
    assert sorted(rows(data), key=int) == EVERY_PAGE


def dones(settings: Settings) -> int:
    """Pages that the log of crawl.urls has."""
    topic = Topics(settings.kafka.prefix).urls
    records = read_partitions(settings, topic, log_bounds(settings, topic, list(range(8))))
    return sum(result.page is not None for one in records for result in u.decode(one.value()).results or ())


@pytest.mark.long
def test_the_numbers_of_a_run_come_from_the_log(
    site: Numbered, data: Path, cluster: Settings, there: list[str]
) -> None:
    """The first one is killed with its workers, the fetch worker of the second too: they count what the log has.

    The first line of progress has counts.
    """
    depth = ("--depth", "6")  # 35 of the pages; the others are linked to from there
    process = run(site, data, *depth, *there, delay_s=0.3)
    until(lambda: len(site.pages()) >= 5, "the crawl to begin")
    pids = list(workers(data).values())
    process.kill()
    process.communicate()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the workers to die")
    before = dones(cluster)
    second = run(site, data, *depth, *there, delay_s=0.4)
    until(lambda: len(site.pages()) >= 12, "pages of the second run")
    os.kill(next(pid for name, pid in workers(data).items() if name.startswith("fetch")), signal.SIGKILL)
    code, summary, err = ended(second)
    assert (code, summary["reason"]) == (0, "finished"), err
    assert summary["pages"] == int(str(summary["fetched"])) - before == dones(cluster) - before
    assert f"this run: {summary['pages']} pages" in err
    dropped = summary["dropped"]
    assert isinstance(dropped, dict)
    assert dropped.keys() == {"depth"}
    first = next(one for one in err.splitlines() if "pages/s" in one)
    assert " 0 done" not in first


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_a_signal_stops_everything_cleanly(site: Numbered, data: Path, number: int, code: int) -> None:
    """Afterwards nothing runs any more; before, a second run was refused with its pid."""
    process = run(site, data, delay_s=0.5)
    until((data.parent / "rows.jsonl.partial").exists, "the first rows")
    refused, _, why = ended(run(site, data))
    assert refused == 2
    assert f"pid {process.pid}" in why
    process.send_signal(number)
    assert ended(process)[0] == code
    assert on_folder(data) == []
    assert (data.parent / "rows.jsonl.partial").exists()


SPIDER = """
import os, signal, time
from crawlog import Spider

class Walker(Spider):
    version = "3"
    follow_links = True
    settings = {"parse.timeout_s": 0.5, "network.allow_private": True}

    def parse(self, response):
        number = int(response.url.rpartition("/")[2])
        yield {"n": number, "twice": False}
        if number == 7:
            raise ValueError("seven")
        if number == 9:
            while True:
                pass
        if number == 11:
            os.kill(os.getpid(), signal.SIGSEGV)
        yield {"n": number, "twice": True}
"""


def test_pages_that_break_a_spider_end_as_dead_letters(site: Numbered, data: Path, there: list[str]) -> None:
    """One that raises, one without end, one that kills its process: workers live, all others give their rows."""
    (data.parent / "walker.py").write_text(SPIDER)
    code, summary, err = ended(run(site, data, "--spider", data.parent / "walker.py", *there))
    assert (code, summary["reason"]) == (4, "finished"), err
    lines = [json.loads(line) for line in (data.parent / "rows.jsonl").read_text().splitlines()]
    good = [number for number in range(1, PAGES + 1) if number not in (7, 9, 11)]
    # The bad ones lead to nobody: what they link to is found from elsewhere too.
    assert sorted((line["n"], line["twice"]) for line in lines) == [(n, twice) for n in good for twice in (False, True)]
    assert "killed by" not in err
    assert "finished, but 3 records could not be handled" in err


CURIOUS = """
import os
from crawlog import Spider

class Curious(Spider):
    def parse(self, response):
        yield {"seen": sorted(name for name in os.environ if name.startswith("CRAWLOG_"))}
"""


def test_what_a_worker_starts_inherits_no_setting(
    site: Numbered, data: Path, there: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is told its settings, secrets among them, but keeps them out of the environment that children get."""
    monkeypatch.setenv("CRAWLOG_FETCH__LOGINS", "https://me:secret@elsewhere.example/")
    (data.parent / "curious.py").write_text(CURIOUS)
    done(run(site, data, "--spider", data.parent / "curious.py", *there))
    assert json.loads((data.parent / "rows.jsonl").read_text())["seen"] == []


RAISING = """
from crawlog import Spider

class Raising(Spider):
    follow_links = True
    settings = {"network.allow_private": True}

    def parse(self, response):
        raise KeyError(response.url)
"""


def test_a_spider_that_raises_shows_at_ctrl_c(site: Numbered, data: Path, cluster: Settings, there: list[str]) -> None:
    """Links are followed no more, and the summary of a run that is interrupted names the error as its end would."""
    (data.parent / "raising.py").write_text(RAISING)
    urls = [f"{site.url[:-1]}{number}" for number in range(2, PAGES)]
    crawl = run(site, data, *urls, "--spider", data.parent / "raising.py", "--job", "raises", *there, delay_s=0.5)
    until(site.pages, "the first page")
    until(lambda: len(set(letters(cluster, "raises"))) >= 3, "dead letters of three pages")
    crawl.send_signal(signal.SIGINT)
    code, summary, err = ended(crawl)
    assert (code, summary["reason"]) == (130, "interrupted")
    assert int(str(summary["dead"])) >= 3, err
    assert f"{summary['dead']} records could not be handled, {summary['dead']} of them: KeyError: " in err


def test_a_run_that_could_fetch_nothing_says_so_by_its_exit_code(data: Path, there: list[str]) -> None:
    """Nobody listens at the address; the same command again says the same of the job that has ended."""
    options = ["-s", "network.allow_private=true", "-s", "fetch.attempts=1", "-s", "robots.obey=false"]
    for reason in ("finished", "already_finished"):
        code, summary, err = ended(crawlog("run", "http://127.0.0.1:9/", "--data", data, "--json", *options, *there))
        assert (code, summary["reason"]) == (6, reason), err
        assert "nothing could be fetched: `crawlog why http://127.0.0.1:9/" in err


def test_rows_of_a_cancelled_job_stay_partial(site: Numbered, data: Path, there: list[str]) -> None:
    """Its exit code is 7, FILE is not made, and neither is it when the command is given again."""
    site.holds_from = PAGES // 4
    crawl = run(site, data, "--job", "gone", *there, delay_s=0.3)
    until((data.parent / "rows.jsonl.partial").exists, "the first rows")
    until(lambda: len(site.pages()) >= 3, "some pages")
    done(crawlog("control", "cancel", "--job", "gone", "--data", data, *there))
    site.goes_on.set()
    for each in (crawl, None):
        code, summary, err = ended(each or run(site, data, "--job", "gone", *there))
        assert (code, summary["reason"], summary["rows"]) == (7, "cancelled", None), err
        assert summary["partial"] == str(data.parent / "rows.jsonl.partial")
        assert f"rows so far: {summary['partial']}" in err
        assert not (data.parent / "rows.jsonl").exists()


def test_up_without_a_worker_that_lives_fails_and_says_why(data: Path) -> None:
    """Its fetch worker cannot have its certificates; nothing is left running."""
    code, _, err = ended(crawlog("up", "--data", data, "-s", f"network.ca_file={data}/none.pem"))
    assert code == 2, err
    assert "worker fetch-0" in err
    assert on_folder(data) == []


def letters(log: Settings, job: str) -> list[str]:
    """The errors of a job's dead letters."""
    names = Topics(log.kafka.prefix)
    headers = [dict(one.headers() or ()) for one in read_partitions(log, names.dead, log_bounds(log, names.dead, [0]))]
    return [str(one["error"], "utf-8") for one in headers if one.get("job") == job.encode()]  # type: ignore[arg-type]  # bytes


def has_row(log: Settings, job: str, url: str) -> bool:
    """Whether crawl.items has a record of this page of a job."""
    topic = Topics(log.kafka.prefix).items
    records = read_partitions(log, topic, log_bounds(log, topic, list(range(log.kafka.partitions))))
    return any(record.key() == f"{job} {url}".encode() for record in records)


@pytest.mark.long
def test_workers_run_the_operators_spider_and_no_strangers(
    site: Numbered, data: Path, cluster: Settings, there: list[str]
) -> None:
    """`up` goes on with what `run --spider` named; a foreign job's pages are dead letters until its file is allowed."""
    own, foreign = data.parent / "own.py", data.parent / "foreign" / "other.py"
    foreign.parent.mkdir()
    mark = data.parent / "ran"
    own.write_text(SPIDER)
    foreign.write_text(f"open({str(mark)!r}, 'w').close()\n" + SPIDER)
    options = ["--data", data, *there, "-s", "network.allow_private=true", "-s", "politeness.delay_s=0.01"]
    done(crawlog("run", f"{site.url[:-1]}39", "--spider", own, "--job", "own", *options))

    stranger, names, page = Producer(cluster, "stranger"), Topics(cluster.kafka.prefix), f"{site.url[:-1]}38"
    spec = u.JobSpec(scope=u.ScopeSpec(names=("127.0.0.1",)), spider=f"{foreign}:Walker")
    write_job(cluster, stranger, names, "foreign", spec)
    for job in ("own", "foreign"):
        with Source([page]) as seeds:
            plant(cluster, stranger, job, seeds, report=lambda _: None)
    code, _, err = ended(crawlog("run", "--job", "foreign", *options))
    assert (code, "security.spider_folders" in err) == (2, True)
    done(crawlog("up", *options))
    until(lambda: has_row(cluster, "own", page) and letters(cluster, "foreign"), "a row and a dead letter")
    assert "security.spider_folders" in letters(cluster, "foreign")[0]
    assert (letters(cluster, "own"), mark.exists()) == ([], False)

    done(crawlog("down", "--data", data))
    done(crawlog("up", *options, "-s", f"security.spider_folders={foreign.parent}"))
    redriven(cluster, LetterChoice(reason="spider_folders"), execute=True, report=pytest.fail)
    until(lambda: has_row(cluster, "foreign", page), "a row of the foreign spider, now allowed")


def test_up_takes_what_any_producer_sends(site: Numbered, data: Path) -> None:
    """A bare record without a key is crawled; `down` leaves nothing running."""
    from confluent_kafka import Producer

    options = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.01"]
    site.holds_from = 5  # so it runs until it is looked at
    done(crawlog("up", "--data", data, *options))
    log = engine.running(data)
    assert log is not None
    producer = Producer(kafka_config(log.point(Settings())))
    producer.produce("crawl.urls", json.dumps({"url": site.url}).encode())
    producer.flush()
    until(site.pages, "the page to be asked for")
    until(
        lambda: "job      default: running" in crawlog("status", "--data", data).communicate()[0],
        "status to tell of it, whose workers report once a second",
    )
    site.goes_on.set()
    done(crawlog("down", "--data", data))
    assert on_folder(data) == []


def test_a_crawl_obeys_commands_over_any_death(site: Numbered, data: Path, cluster: Settings, there: list[str]) -> None:
    """Paused it asks nothing more, though its workers are killed; resumed it goes on; stopped its run ends.

    With its host blocked a run ends too, and says how to unblock it; after that the same command fetches the rest.
    """
    job = ("--job", "slow")

    def control(*words: str) -> str:
        process = crawlog("control", *words, "--data", data, *there)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out + err

    def is_paused() -> bool:
        view = FleetView.read(cluster).job("slow")
        return view is not None and bool(view.counts.paused) and not view.counts.in_flight

    def joins() -> int:
        [log] = (data / "logs").glob("fetch-*.log")
        return log.read_text().count("partitions=")

    crawl = run(site, data, *job, *there, delay_s=1.0)  # slower than any command
    until(lambda: len(site.pages()) >= 2, "the first pages")
    control("pause", *job)
    until(is_paused, "a report of the pause")
    asked, joined = site.asked.total(), joins()
    for pid in workers(data).values():
        os.kill(pid, signal.SIGKILL)
    until(lambda: joins() > joined, "a new worker")
    time.sleep(2.0)
    assert site.asked.total() == asked
    assert crawl.poll() is None
    assert control("list") == "pause job slow\n"
    control("resume", *job)
    until(lambda: site.asked.total() > asked, "more pages")
    control("stop", *job)
    code, summary, _ = ended(crawl)
    assert (code, summary["reason"]) == (0, "stopped")

    host = ("--host", site.url.removesuffix("/1"))
    control("block", *host)
    control("resume", *job)
    asked = site.asked.total()
    code, summary, err = ended(run(site, data, *job, *there))
    assert (code, summary["reason"], summary["queued"]) == (0, "blocked", 0), err
    assert summary["held"]
    assert f"`crawlog control unblock --host {host[1]}" in err
    assert site.asked.total() == asked
    control("unblock", *host)
    code, summary, err = ended(run(site, data, *job, *there))
    assert (code, summary["reason"], summary["rows"]) == (0, "finished", PAGES), err


def before_page(settings: Settings, count: int) -> dict[int, int]:
    """The place in each partition of crawl.urls before the done of the page with this number in order."""
    topic = Topics(settings.kafka.prefix).urls
    held = log_bounds(settings, topic, list(range(8)))
    to = {partition: end for partition, (_, end) in held.items()}
    dones = 0
    for message in read_partitions(settings, topic, held):
        dones += sum(result.page is not None for result in u.decode(message.value()).results or ())
        if dones >= count:
            to[message.partition() or 0] = message.offset() or 0
            return to
    raise AssertionError(f"{dones} pages")


@pytest.mark.long
def test_a_crawl_is_rewound_and_a_job_begun_again(
    site: Numbered, data: Path, cluster: Settings, there: list[str]
) -> None:
    """While it runs: what was found later is asked again. From its seeds: nothing old stays in FILE."""
    site.holds_from = PAGES * 3 // 4
    crawl = run(site, data, *there, delay_s=0.1)
    until(lambda: len(site.pages()) >= site.holds_from, "most of the pages")
    settings = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": data})})
    assert rewind_crawl(settings, before_page(settings, PAGES // 4)) == 1
    site.goes_on.set()
    code, summary, err = ended(crawl)
    assert (code, summary["reason"], summary["rows"]) == (0, "finished", PAGES), err
    asked = Counter(site.pages().values())
    assert asked.keys() == {1, 2}
    assert asked[2] >= PAGES // 4

    site.hidden = {PAGES}
    code, summary, err = ended(run(site, data, "--fresh", *there))
    assert (code, summary["epoch"], summary["fetched"], summary["rows"]) == (0, 2, PAGES - 1, PAGES - 1), err
    assert sorted(rows(data), key=int) == EVERY_PAGE[:-1]
    topics = Topics(settings.kafka.prefix)
    copy = known_job(settings, topics, str(summary["job"]))
    assert copy is not None
    apply_change(settings, Producer(settings, "test"), topics, copy, state="cancelled")
    verdicts = verify(settings, data / "state")
    assert verdicts
    assert all(verdict.equal for verdict in verdicts)
    total = site.asked.total()
    code, summary, err = ended(run(site, data, *there))
    assert (code, summary["reason"]) == (7, "cancelled"), err
    assert "--fresh crawls it again" in err
    assert site.asked.total() == total
