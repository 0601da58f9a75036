"""The command line: messages, exit codes, and what stays off standard output."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from crawlog import __version__, outcome
from crawlog.cli import arguments, summary_text
from crawlog.cli.main import main
from crawlog.commands.export import Exported
from crawlog.commands.replay import ReplayOptions
from crawlog.jobs.request import JobRequest, LocalParts, job_name, refused
from crawlog.jobs.submit import wanted_of
from crawlog.jobs.summary import Summary
from crawlog.processes import folder
from crawlog.processes.hold import Hold
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.progress import JobCounts, JobRemarks
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec
from crawlog.streams.control import write_job
from crawlog.streams.engine.engine import Engine
from crawlog.streams.errors import CrawlError, EngineError, GiveUp, Misconfigured
from crawlog.streams.fleet import JobView
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import TOPIC_KINDS, Topics
from crawlog.streams.requests.request import basic, read_login
from crawlog.streams.settings.settings import Settings
from crawlog.streams.spiders import StoredPage
from tests.support.finalizing import signal_in_a_finalizer
from tests.support.processes import Process

UNREACHABLE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command runs in a folder of its own, without settings from the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CRAWLOG_")]:
        monkeypatch.delenv(name)


class Ended(NamedTuple):
    """What a command left behind."""

    returncode: object
    stdout: str
    stderr: str


Command = Callable[..., Ended]


@pytest.fixture
def crawlog(capfd: pytest.CaptureFixture[str]) -> Command:
    """One command, as a user types it; in this process, since what it imports takes a second in a new one."""

    def run(*args: str) -> Ended:
        with pytest.raises(SystemExit) as end:
            main(list(args))
        return Ended(end.value.code, *capfd.readouterr())

    return run


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, outcome.INTERRUPTED), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_what_a_command_has_started(number: int, code: int, request: pytest.FixtureRequest) -> None:
    """Once: a second one, sent while that is stopped, leaves nothing behind. Afterwards signals are as they were."""
    ours = signal.signal(number, signal.default_int_handler)  # the suite itself may run under `nohup`
    request.addfinalizer(lambda: signal.signal(number, ours))
    ended: list[str] = []
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    def command() -> int:
        with outcome.stopped_by_signals():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                ended.append("engine")
        return outcome.FINISHED

    assert outcome.exit_code(command, verbose=lambda: False) == code
    assert ended == ["engine"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_is_heard_again_where_a_finalizer_dropped_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no Ctrl-C would end the command any more."""
    monkeypatch.setattr(outcome, "UNWINDING_S", 0.0)  # as if it were over
    with outcome.stopped_by_signals():
        signal_in_a_finalizer(signal.SIGTERM)
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_while_a_client_reads_its_configuration_ends_the_command() -> None:
    """confluent-kafka makes a TypeError of what the handler raises."""

    class Key(str):
        __slots__ = ()

        def __str__(self) -> str:
            os.kill(os.getpid(), signal.SIGTERM)
            return "client.id"

    with pytest.raises(SystemExit) as ended, outcome.stopped_by_signals():
        confluent_kafka.Producer({Key(): ""})
    assert ended.value.code == 143
    assert isinstance(ended.value.__cause__, TypeError)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with outcome.stopped_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["run"], "give a URL, or --seeds FILE"),
        (["recrawl", "--job", "j"], "which URLs? Give some, or --failed"),
        (["recrawl", "--job", "j", "--older-than", "soon"], "--older-than: 'soon' is no length of time"),
        (["recrawl", "--job", "j", "--status", "403,6xx"], "--status '6xx': write 403, 5xx"),
        (["recrawl", "example.com/a"], "did you mean https://example.com/a ?"),
        (["jobs", "retry", "--failed"], "crawlog jobs retry: name the job"),
        (["jobs", "retry", "j", "--dead", "--failed"], "--dead: of records; the other options choose URLs"),
        (["run", "example.com/a"], "did you mean https://example.com/a ?"),
        (["run", "ftp://example.com/"], "crawlog fetches http and https"),
        (["run", "http:example.com"], "did you mean http://example.com/ ?"),
        (["run", "http://"], "'http://' is not a URL"),
        (["run", "x" * 300], "is not a URL"),
        (["run", "http://a.example/\udcff"], "is not UTF-8; write such bytes as %FF"),
        (["run", "http://a.example/", "-o", "\udcff.csv"], "is not UTF-8; use another name or folder"),
        (["run", "http://a.example/", "--spider", "\udcff.py"], "udcff.py' is not UTF-8; use another name or folder"),
        (["run", "http://a.example/", "--spider", "a.py", "-a", "x=\udcff"], "-a x: its value is not UTF-8"),
        (["run", "http://a.example/", "--spider", "a.py", "-s", "X=\udcff"], "-s X: its value is not UTF-8"),
        (["run", "http://a.example/", "-s", "spider.env=A,\udcff"], "-s: spider.env: its value is not UTF-8"),
        (["run", "http://a.example/", "--bootstrap", "\udcff"], "flag: kafka.bootstrap: its value is not UTF-8"),
        (["submit", "http://a.example/\udcff"], "is not UTF-8; write such bytes as %FF"),
        (["submit", "http://a.example/", "--spider", "a.py", "-a", "x=\udcff"], "-a x: its value is not UTF-8"),
        (["run", "http://a.example/", "--seeds", "none.txt"], "--seeds none.txt: No such file or directory"),
        (["run", "http://a.example/", "--spider", "none.py:S"], "none.py: No such file or directory"),
        (["run", "http://a.example/", "--config", "none.toml"], "none.toml: cannot be read: No such file"),
        (["run", "http://a.example/", "-s", "politeness.dely_s=1"], "did you mean politeness.delay_s?"),
        (["run", "http://a.example/", "-s", "politeness.delay_s=soon"], "must be a number >= 0"),
        (["run", "http://a.example/", "-s", "delay"], "a setting is KEY=VALUE"),
        (["run", "http://a.example/", "--workers", "fetch=2,parse"], "parse= wants a whole number >= 1"),
        (["run", "http://a.example/", "--workers", "fetsch=2"], "there are workers for fetch and parse"),
        (["run", "http://a.example/", "--depth", "-1"], "--depth"),
        (["run", "http://a.example/", "--max-pages", "0"], "--max-pages"),
        (["export", "--job", "a", "-o", "a.csv", "-o", "b.csv"], "`crawlog export` writes one file"),
        (["export", "--job", "a"], "Missing option '-o'"),
        (["run", "http://a.example/", "-o", "x.docx"], ".jsonl, .json, .csv"),
        (["run", "http://a.example/", "-o", "no/x.csv"], "there is no folder no"),
        (["run", "http://a.example/", "-o", "/proc/x.jsonl"], "no file can be made in /proc"),
        (["replay", "--group", "nosuch", "--to-earliest"], "there is no group 'nosuch'; there are: parse, sink, fetch"),
        (["replay", "--group", "shop.crawlog-parse", "--to-earliest"], "there is no group 'shop.crawlog-parse'"),
        (["run", "http://a.example/", "--data", "\udcff"], "is not UTF-8, which Kafka cannot open"),
        (["run", "http://a.example/", "--job", "a b"], "a job's name is"),
        (["run", "http://a.example/", "--job", ""], "a job's name is"),
        (["run", "http://a.example/", "--data", "/proc/none"], "cannot use the data folder /proc/none"),
        (["run", "http://a.example/", "--dept", "1"], "--depth"),
        (["seed", "none.txt", "--job", "a"], "none.txt"),
        (["worker", "fetsch"], "'fetch', 'parse', 'sink'"),
        (["worker"], "Choose from: fetch, parse, sink"),
        (["control"], "Choose from: pause, resume"),
        (["worker", "fetch"], "Start one with `crawlog up`"),
        (["kcat-config"], "Start one with `crawlog up`"),
        (["probe", "nonsense"], "there are: normalize"),
        (["replay", "--group", "parse"], "Give one of --to-earliest, --to-latest"),
        (["replay", "--to-latest", "--shift-by", "0", "--group", "parse"], "got --to-latest and --shift-by"),
        (["replay", "--group", "parse", "--to-latest", "--dry-run", "--execute"], "are opposites"),
        (["repair", "--dry-run", "--execute"], "are opposites"),
        (["dead", "redrive", "--all", "--dry-run", "--execute"], "are opposites"),
        (["dead", "drop", "--all", "--dry-run", "--execute"], "are opposites"),
        (["replay", "--to-latest"], "--group"),
        (["replay", "--group", "parse", "--to-datetime", "soon"], "--to-datetime 'soon': write it as"),
        (["replay", "--group", "parse", "--by-duration", "1h"], "--by-duration '1h': write it as"),
        (["replay", "--group", "parse", "--from-file", "none.csv"], "--from-file none.csv: No such file"),
        (["rnu"], "Did you mean `crawlog run`?"),
        (["dead", "lst"], "Did you mean `crawlog dead list`?"),
        (["settings", "-s", "x.y=1"], "unknown setting 'x.y'"),
    ],
)
def test_a_mistake_is_told_and_ends_with_2(args: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One clear message on standard error, nothing on standard output, no traceback."""
    with pytest.raises(SystemExit) as end:
        main(args)
    said = capsys.readouterr()
    assert told in said.err
    assert (end.value.code, said.out) == (2, "")
    assert "Traceback" not in said.err
    assert said.err.startswith("crawlog: ")
    assert not (Path(".crawlog") / "kafka").exists()  # no engine was started to find out


def test_a_file_of_offsets_may_be_a_pipe() -> None:
    """`--from-file <(…)`: looked at before the engine starts, it still has its offsets afterwards."""
    taken, given = os.pipe()
    os.write(given, b"crawl.pages,0,7\n")
    os.close(given)
    order = ReplayOptions("parse", "from-file", f"/dev/fd/{taken}")
    os.close(taken)
    assert order.listed == "crawl.pages,0,7\n"


@pytest.mark.parametrize(
    "command",
    [
        ["topics"],
        ["seed", "http://a.example/", "--job", "a"],
        ["run", "http://a.example/"],
        ["worker", "parse"],
    ],
)
def test_an_unreachable_broker_ends_with_3(crawlog: Command, command: list[str]) -> None:
    """The message names the address; there is no fall-back to the local engine."""
    done = crawlog(*command, "--bootstrap", UNREACHABLE)
    assert UNREACHABLE in done.stderr
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_up_finds_out_that_its_broker_is_unreachable() -> None:
    """Though what it starts is what asks."""
    command = [sys.executable, "-m", "crawlog", "up", "--bootstrap", UNREACHABLE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert UNREACHABLE in done.stderr
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_a_data_folder_of_a_newer_crawlog_is_refused(crawlog: Command, tmp_path: Path) -> None:
    """Its log may lie elsewhere in it. Both numbers are told, and nothing in the folder is touched."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "VERSION").write_text("999\n")
    done = crawlog("run", "http://a.example/", "--data", "old")
    assert done.returncode == 2
    assert f"its VERSION says 999, this crawlog reads {folder.FORMAT}" in done.stderr
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["VERSION"]


def test_a_file_is_no_data_folder(crawlog: Command, tmp_path: Path) -> None:
    """A file in its place is told as what it is."""
    (tmp_path / "file").touch()
    done = crawlog("run", "http://a.example/", "--data", "file")
    assert done.returncode == 2
    assert "cannot use the data folder file" in done.stderr


def test_a_new_folder_gets_its_version(tmp_path: Path) -> None:
    """And is accepted from then on."""
    folder.prepare(tmp_path / "deep" / "data")
    folder.prepare(tmp_path / "deep" / "data")
    assert (tmp_path / "deep" / "data" / "VERSION").read_text() == f"{folder.FORMAT}\n"


@pytest.mark.parametrize("version", [b"0\n", b"", b"\xff garbage", "²".encode()])
def test_a_data_folder_of_an_older_crawlog_goes_on(tmp_path: Path, version: bytes) -> None:
    """So does one whose VERSION was damaged; what lies in it has versions of its own."""
    (tmp_path / "VERSION").write_bytes(version)
    (tmp_path / "kafka").mkdir()
    folder.prepare(tmp_path)
    assert (tmp_path / "VERSION").read_text() == f"{folder.FORMAT}\n"
    assert (tmp_path / "kafka").is_dir()


def test_many_processes_may_make_the_folder_at_once(tmp_path: Path) -> None:
    """As the services of the Compose file do, which share one."""
    with ThreadPoolExecutor(16) as pool:
        for number in range(50):
            list(pool.map(folder.prepare, [tmp_path / str(number)] * 16))
            assert [path.name for path in (tmp_path / str(number)).iterdir()] == ["VERSION"]


def test_a_url_that_is_a_file_is_named_so(crawlog: Command, tmp_path: Path) -> None:
    """`crawlog run urls.txt` is meant as --seeds."""
    (tmp_path / "urls.txt").touch()
    assert "--seeds urls.txt" in crawlog("run", "urls.txt").stderr


def test_seeds_may_come_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `crawlog run -` is told."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"http://a.example/\n")))
    parts = LocalParts((str(arguments.existing_file(Path("-"), "--seeds")),))
    with ExitStack() as opened:
        wanted = wanted_of(Settings(), JobRequest(), parts, print, opened)
        assert wanted.name == job_name(["http://a.example/"])
        assert wanted.source is not None
        assert [line for _, part in wanted.source.parts() for line in part] == [b"http://a.example/\n"]


def test_all_wrong_urls_are_told_at_once() -> None:
    """Not one a try."""
    with pytest.raises(Misconfigured) as caught:
        arguments.checked_urls(["http://ok.example/", "a.example", "b.example"])
    assert "https://a.example/" in str(caught.value)
    assert "https://b.example/" in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://a.example", "https://[::1]:8080/x?y", "HTTP://EXAMPLE.com/ü", "http://münchen.example/"]
)
def test_urls_are_taken_as_given(url: str) -> None:
    """What they become is for the canonical rules to say."""
    assert arguments.checked_urls([url]) == [url]


def test_logins_in_seeds_become_settings() -> None:
    """A URL travels through the log, its user and password do not; they are sent to that origin only."""
    given = [
        "http://me:p%40ss@a.example:81/x",
        "http://b.example/@me",
        "https://only@c.example/",
        "http://:pw@d.example/",
    ]
    plain, logins = arguments.logins_apart(given)
    assert plain == ["http://a.example:81/x", "http://b.example/@me", "https://c.example/", "http://d.example/"]
    assert logins == ("http://me:p%40ss@a.example:81", "https://only@c.example")
    assert dict(map(read_login, logins)) == {
        "http://a.example:81": basic("me", "p@ss"),
        "https://c.example:443": basic("only", ""),
    }


def test_workers_are_counts_by_stage() -> None:
    """Each stage may be left out."""
    assert arguments.worker_counts("fetch=2, parse=3") == {"run.fetch_workers": 2, "run.parse_workers": 3}
    assert arguments.worker_counts("auto") == {"run.fetch_workers": "auto", "run.parse_workers": "auto"}
    assert arguments.worker_counts("parse=1") == {"run.parse_workers": 1}


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (Misconfigured("m"), 2, "m"),
        (EngineError("e"), 3, "e"),
        (GiveUp("g"), 1, "g"),
        (CrawlError("c"), 1, "c"),
        (FileNotFoundError(2, "No such file or directory", "x"), 2, "x: No such file"),
        (PermissionError(13, "Permission denied", "x"), 2, "x: Permission denied"),
        (OSError(28, "No space left on device", "x"), 3, "x: No space left"),
        (ZeroDivisionError("z"), 1, "internal error: ZeroDivisionError: z"),
    ],
)
def test_every_error_has_its_exit_code(
    error: Exception, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without -v there is no traceback, with it there is."""

    def fail() -> int:
        raise error

    assert outcome.exit_code(fail, verbose=lambda: False) == code
    quiet = capsys.readouterr().err
    assert told in quiet
    assert "Traceback" not in quiet
    outcome.exit_code(fail, verbose=lambda: True)
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_130() -> None:
    """Without a word."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    assert outcome.exit_code(interrupted, verbose=lambda: False) == 130


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, outcome.INTERRUPTED), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_while_a_command_is_loaded_is_no_crash(number: int, code: int, tmp_path: Path) -> None:
    """A third of a second, in which nothing is there to be cleaned up: no traceback, the usual code."""
    (tmp_path / "rich_click.py").write_text("print('loading', flush=True)\nimport time\ntime.sleep(60)\n")
    heard = f"import signal; signal.signal({number:d}, signal.SIG_DFL)"  # who runs the tests may have it ignored
    command = f"{heard}; from crawlog.__main__ import main; main()"
    with Process(
        [sys.executable, "-c", command],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        assert started.stdout.readline() == "loading\n"
        started.send_signal(number)
        assert (started.stderr.read(), started.wait(60)) == ("", code)


def test_a_reader_that_leaves_is_no_error() -> None:
    """`crawlog settings | head -1` ends like any Unix filter, without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "crawlog", "settings"], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=180
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("counts", "is_told"),
    [
        (JobCounts(folded=2, failed=1), True),
        (JobCounts(folded=2, refused=1), True),
        (JobCounts(folded=2, dropped={"include": 1}), True),
        (JobCounts(folded=2, fetched=1, failed=1), False),
        (JobCounts(folded=2, failed=1, queued=1), False),
        (JobCounts(folded=2, failed=1, held=1), False),
    ],
)
def test_a_crawl_of_nothing_says_how_to_learn_why(counts: JobCounts, is_told: bool) -> None:
    """A host that is down, robots.txt, a rule that the seed itself does not meet: it ends like any other crawl."""
    told = summary_text.lines(Summary("j", "http://a.example/?a&b", "finished", counts=counts))
    assert any("`crawlog why 'http://a.example/?a&b'`" in line for line in told) == is_told
    unnamed = summary_text.lines(Summary("j", "", "finished", counts=counts))
    assert any("`crawlog why` of one of its URLs" in line for line in unnamed) == is_told


@pytest.mark.parametrize(
    ("code", "reason", "dead", "counts"),
    [
        (0, "finished", 0, JobCounts(folded=2, fetched=1)),
        (0, "finished", 0, JobCounts(folded=2, fetched=1, failed=9)),
        (4, "finished", 1, JobCounts(folded=2, fetched=1)),
        (6, "finished", 0, JobCounts(folded=2, failed=1)),
        (6, "finished", 0, JobCounts(folded=2, redirected=1, refused=1)),
        (6, "finished", 1, JobCounts(folded=2, failed=1)),
        (6, "already_finished", 0, JobCounts(folded=2, dropped={"scope": 1})),
        (6, "finished", 0, JobCounts(folded=2, fetched=3, statuses={"403": 1, "500": 1, "404": 1})),
        (6, "max_pages", 0, JobCounts(folded=2, fetched=1, statuses={"403": 1})),
        (6, "closed", 1, JobCounts(folded=2, fetched=1, redirected=1, statuses={"429": 1, "302": 1})),
        (0, "closed", 0, JobCounts(folded=2)),
        (0, "finished", 0, JobCounts(folded=2, fetched=3, statuses={"403": 2, "304": 1})),
        (0, "already_finished", 0, None),
        (0, "max_pages", 0, JobCounts(folded=2, fetched=1)),
        (0, "stopped", 0, JobCounts(folded=2)),
        (7, "cancelled", 0, JobCounts(folded=2)),
        (7, "cancelled", 3, JobCounts(folded=2, fetched=1)),
        (7, "deleted", 0, None),
        (7, "begun_again", 0, None),
    ],
)
def test_the_exit_code_of_a_run_says_how_it_ended(code: int, reason: str, dead: int, counts: JobCounts | None) -> None:
    """6: nothing could be fetched; 7: its job is gone; both say more than 4, which is for dead letters."""
    assert summary_text.exit_code(Summary("j", reason=reason, dead=dead, counts=counts)) == code


@pytest.mark.parametrize(
    ("code", "said", "counts", "about"),
    [
        (0, "has been answered", JobCounts(folded=1), {"start_items": 3}),
        (0, "has been answered", JobCounts(folded=1, dropped={"known": 1}), {"start_items": 3}),
        (4, "but 1 record could not be handled", JobCounts(folded=1), {"start_items": 3, "dead": 1}),
        (6, "and nothing could be fetched", JobCounts(folded=1), {"rows": 0}),
        (6, "and nothing could be fetched", JobCounts(folded=2, failed=1), {"start_items": 1}),
        (6, "and nothing could be fetched", JobCounts(folded=2, refused=1), {"start_items": 1}),
        (4, "but its `start` failed", JobCounts(folded=1), {"rows": 0, "start_error": "ValueError: no"}),
        (4, "but 1 URL could not be fetched, its `start` failed", JobCounts(failed=1), {"start_error": "no"}),
    ],
)
def test_items_without_a_request_are_no_failure_and_a_failed_start_is_one(
    code: int, said: str, counts: JobCounts, about: dict[str, Any]
) -> None:
    """A middleware may answer all requests, and `start` may give items alone."""
    summary = Summary("j", reason="finished", counts=counts, **about)
    assert summary_text.exit_code(summary) == code
    assert summary_text.lines(summary)[0].endswith(said)


def test_the_summary_names_the_first_page_without_a_row_and_a_lost_login() -> None:
    """Both are easy to miss in a crawl that ends well."""
    summary = Summary("j", reason="finished", remarks=JobRemarks(0, 2, "http://a/1", "http://a/login"))
    told = summary_text.lines(summary)
    assert "  2 pages gave no row, the first: http://a/1" in told
    assert "  the answer to a form sets a cookie, which fetch.cookies=false drops: http://a/login" in told
    values = json.loads(summary_text.as_json(summary))
    assert (values["rowless"], values["first_rowless"]) == (2, "http://a/1")


@pytest.mark.parametrize(
    ("said", "dead", "counts"),
    [
        ("every URL that was found and allowed has been answered", 0, JobCounts(folded=2, fetched=1)),
        ("but 2 URLs could not be fetched", 0, JobCounts(folded=2, fetched=1, failed=2)),
        ("but 1 record could not be handled", 1, JobCounts(folded=2, fetched=1)),
        ("but 1 URL could not be fetched, 3 records could not be handled", 3, JobCounts(folded=2, fetched=1, failed=1)),
        ("and nothing could be fetched", 0, JobCounts(folded=2, failed=2)),
    ],
)
def test_every_url_is_said_to_be_answered_only_where_it_is_so(said: str, dead: int, counts: JobCounts) -> None:
    """A URL without an answer and a page that nobody could parse are named in the first line."""
    first = summary_text.lines(Summary("j", reason="finished", dead=dead, counts=counts))[0]
    assert first.endswith(said)


@pytest.mark.parametrize(("again", "said"), [(2, "2 URLs will be due again later"), (0, "its `start` begins again")])
def test_a_run_of_a_job_that_watches_says_what_comes(again: int, said: str) -> None:
    """By `recrawl.age`, or by `@every`."""
    ended = Summary("j", reason="watching", counts=JobCounts(folded=2, fetched=1, again=again))
    assert said in summary_text.lines(ended)[0]


def test_a_finished_run_claims_nothing_about_the_dead_letters_of_earlier_runs() -> None:
    """Nothing is left to fetch, but pages of an earlier run of this job may lie in crawl.dead."""
    ended = Summary("j", reason="finished", is_clean=False, counts=JobCounts(folded=2, fetched=1))
    assert summary_text.lines(ended)[0] == "j finished: nothing is left to fetch"


@pytest.mark.parametrize("reason", ["finished", "interrupted", "max_pages"])
def test_the_summary_names_the_commonest_error_and_its_count(reason: str) -> None:
    """However the run ended, for a spider that raises does so on every page."""
    ended = Summary(
        "j", reason=reason, dead=7, commonest_error="ValueError: seven", commonest_count=5, counts=JobCounts()
    )
    assert "  7 records could not be handled, 5 of them: ValueError: seven" in summary_text.lines(ended)
    assert any("crawlog dead list" in line for line in summary_text.lines(ended))
    told = json.loads(summary_text.as_json(ended))
    assert (told["dead"], told["commonest_error"], told["commonest_count"]) == (7, "ValueError: seven", 5)


def test_the_summary_counts_items_that_pipelines_failed_and_names_the_place_of_their_error() -> None:
    """Of 48 failures 45 are items, all of one page."""
    ended = Summary(
        "j",
        reason="finished",
        dead=48,
        failed_items=45,
        commonest_error="TimeoutError: full",
        commonest_count=45,
        commonest_place="/shop/pipelines.py, line 3, in process_item",
        counts=JobCounts(folded=2, fetched=1),
    )
    first, *others = summary_text.lines(ended)
    assert first == "j finished, but 3 records and 45 items could not be handled"
    assert others[-3:-1] == [
        "  3 records and 45 items could not be handled, 45 of them: TimeoutError: full",
        "    raised in /shop/pipelines.py, line 3, in process_item",
    ]


def test_the_summary_tells_which_rules_dropped_how_many_links() -> None:
    """A crawl that ends too soon is mostly one of too small a scope."""
    counts = JobCounts(folded=2, fetched=1, dropped={"depth": 3, "scope": 1200})
    assert "  1,203 links dropped: 1,200 by scope, 3 by depth" in summary_text.lines(Summary("j", counts=counts))


@pytest.mark.parametrize(
    ("reason", "is_told"), [("finished", True), ("stopped", True), ("interrupted", False), ("begun_again", False)]
)
def test_only_a_run_that_ended_tells_how_many_pages_were_parsed_again(reason: str, *, is_told: bool) -> None:
    """An interrupted one knows newer reports of parse than of fetch."""
    told = summary_text.lines(Summary("j", reason=reason, pages=4, parsed=6, counts=JobCounts(folded=2, fetched=4)))
    assert ("  parsed again, or stored before: 2 pages" in told) == is_told


def test_a_deleted_job_is_not_said_to_be_cancelled() -> None:
    """--fresh would find no job to begin again."""
    (line, *_) = summary_text.lines(Summary("j", reason="deleted"))
    assert line.startswith("j was deleted:")
    assert "--fresh" not in line


def test_a_job_that_another_command_began_again_is_named_with_the_command_that_goes_on() -> None:
    """The same one might give it other seeds and settings."""
    (line, *_) = summary_text.lines(Summary("j", reason="begun_again"))
    assert "`crawlog run --job j`" in line


@pytest.mark.parametrize("reason", ["cancelled", "deleted", "begun_again", "stopped", "interrupted"])
def test_rows_of_an_unfinished_run_are_said_to_lie_in_the_partial_file(reason: str) -> None:
    """Nobody takes them for the results."""
    ended = Summary("j", reason=reason, output="rows.csv", partial="rows.csv.partial")
    assert "  rows so far: rows.csv.partial" in summary_text.lines(ended)
    assert json.loads(summary_text.as_json(ended))["partial"] == "rows.csv.partial"


def test_a_run_that_is_interrupted_while_it_makes_file_says_so() -> None:
    """The job has finished; a sink or pipelines may take long."""
    ended = Summary("j", reason="finished", signal=2, output="rows.csv", partial="rows.csv.partial")
    assert summary_text.lines(ended)[-2:] == [
        "  interrupted before rows.csv was made; the same command makes it",
        "  rows so far: rows.csv.partial",
    ]


def test_seeds_that_are_not_asked_are_told_with_what_would_have_them_asked() -> None:
    """By their spelling alone; what a name resolves to only the crawl learns."""
    seeds = ["http:127.1:81/x", "https://a.example/", "http://169.254.169.254/", "http://x.localhost./"]
    closed = refused(seeds, allow_private=False)
    assert [line.partition(" is not asked")[0] for line in closed] == [seeds[0], seeds[2], seeds[3]]
    assert ["network.allow_private=true" in line for line in closed] == [True, False, True]
    assert ["with --fresh once the job has refused it" in line for line in closed] == [True, False, True]
    opened = refused(seeds, allow_private=True)
    assert [line.partition(" ")[0] for line in opened] == [seeds[2]]


def test_a_seed_that_is_no_url_hides_no_refused_one() -> None:
    """It is told as a bad line, and is no bug in crawlog."""
    (line,) = refused(["http://[", "a b", "\udc80", "http://127.0.0.1/"], allow_private=False)
    assert line.startswith("http://127.0.0.1/ is not asked")


def test_a_terminal_that_is_not_utf_8_is_no_error() -> None:
    """What it has no character for is shown by its number."""
    done = subprocess.run(
        [sys.executable, "-m", "crawlog", "run", "--help"],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"URL\u2026" in done.stdout


def test_closed_streams_are_no_error() -> None:
    """`crawlog … >&- 2>&- <&-`: what would be printed is lost, and into no other file."""
    command = f'"{sys.executable}" -m crawlog settings >&- 2>&- <&-'
    assert subprocess.run(["/bin/sh", "-c", command], check=False, timeout=180).returncode == 0


def test_settings_show_their_origins(crawlog: Command, tmp_path: Path) -> None:
    """Key, value, and who set it."""
    (tmp_path / "crawlog.toml").write_text("[fetch]\nconcurrency = 7\n")
    lines = crawlog("settings", "--origins", "-s", "scope=host").stdout.splitlines()
    table = {line.split()[0]: line.split()[1:] for line in lines}
    assert table["fetch.concurrency"] == ["7", "crawlog.toml"]
    assert table["scope.kind"] == ["host", "-s"]
    assert table["robots.obey"] == ["true", "default"]


def test_settings_as_json_hide_secrets(crawlog: Command) -> None:
    """One object a setting."""
    answer = crawlog("settings", "--json", "-s", "kafka.sasl_password=hunter2").stdout
    by_key = {one["key"]: one for one in map(json.loads, answer.splitlines())}
    assert by_key["fetch.concurrency"] == {"key": "fetch.concurrency", "value": 256, "origin": "default"}
    assert "hunter2" not in answer


def test_what_the_log_knows_of_a_page_is_shown_without_secrets(
    crawlog: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `why --json` and `dead show` have it."""
    request = RequestRecord("POST", headers=(("Authorization", "s3cret"),), body=b"pw=s3cret")
    meta = PageMeta("http://a.test/", "j", http=200, request=request, headers=(("Set-Cookie", "a=s3cret"),))
    monkeypatch.setattr("crawlog.cli.questions.existing_log", contextlib.nullcontext)
    monkeypatch.setattr("crawlog.commands.one_page.stored_at", lambda *_: StoredPage(meta, b""))
    shown = crawlog("pages", "cat", "0:0", "--headers").stdout
    assert json.loads(shown)["headers"] == [["Set-Cookie", "********"]]
    assert "s3cret" not in shown


def test_a_page_whose_body_could_not_be_unpacked_is_told_of(crawlog: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was written and nothing said; an empty page is empty."""
    page = StoredPage(PageMeta("http://a.test/", "j", http=200, error="bad_encoding"), b"")
    monkeypatch.setattr("crawlog.cli.questions.existing_log", contextlib.nullcontext)
    monkeypatch.setattr("crawlog.commands.one_page.stored_at", lambda *_: page)
    for option in ([], ["--text"]):
        done = crawlog("pages", "cat", "0:0", *option)
        assert (done.returncode, done.stdout) == (2, "")
        assert "the page of http://a.test/ has no body: bad_encoding" in done.stderr
    page = StoredPage(PageMeta("http://a.test/", "j", http=200), b"")
    assert crawlog("pages", "cat", "0:0").returncode == 0


@pytest.mark.parametrize(("end", "code"), [(None, 8), (KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_export_tells_what_it_left_also_at_a_signal(
    crawlog: Command, monkeypatch: pytest.MonkeyPatch, end: BaseException | None, code: int
) -> None:
    """As text or as JSON, once."""
    made = Exported("j", "rows.csv.partial", 2, is_complete=False, state="running")

    def export_job(*_: object, left: Callable[[Exported], None], **__: object) -> Exported:
        if end is not None:
            left(made)
            raise end
        return made

    monkeypatch.setattr("crawlog.cli.exporting.existing_log", contextlib.nullcontext)
    monkeypatch.setattr("crawlog.commands.export.export_job", export_job)
    words = "export", "--job", "j", "-o", "rows.csv", "--follow"
    said = crawlog(*words)
    assert (said.returncode, said.stdout) == (code, "")
    assert said.stderr.split("\n", 1)[0] == "2 rows in rows.csv.partial, not complete: the job j is running"
    shown = crawlog(*words, "--json")
    assert (shown.returncode, json.loads(shown.stdout)["rows"], shown.stderr.strip()) == (code, 2, "")


def test_an_export_that_is_complete_tells_of_dead_letters(crawlog: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are in no file."""
    made = Exported("j", "rows.csv", 180, is_complete=True, state="finished", dead=300)
    monkeypatch.setattr("crawlog.cli.exporting.existing_log", contextlib.nullcontext)
    monkeypatch.setattr("crawlog.commands.export.export_job", lambda *_, **__: made)
    said = crawlog("export", "--job", "j", "-o", "rows.csv")
    assert said.returncode == 0
    assert said.stderr.startswith(
        "180 rows in rows.csv, complete; 300 records of the job could not be handled, see `cra"
    )


def test_probe_answers_line_by_line_without_faust() -> None:
    """In order, an error in one line answers that line; neither Faust nor a Kafka client is imported."""
    code = (
        "import sys; from crawlog.cli.main import main\n"
        "try: main(['probe', 'domain'])\n"
        "finally: assert not {'faust', 'confluent_kafka', 'aiohttp', 'rocksdict'} & set(sys.modules), 'imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input='{"host": "a.b.co.uk"}\nnonsense\n{"host": "x.github.io"}\n',
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert (first, third) == ({"domain": "b.co.uk"}, {"domain": "x.github.io"})
    assert "error" in second


def test_help_and_version_need_no_client() -> None:
    """They cost no import of Kafka, Faust or pydantic."""
    code = (
        "import sys; from crawlog.cli.main import main\n"
        "try: main(['--version'])\n"
        "finally: assert not {'faust', 'confluent_kafka', 'pydantic', 'aiohttp'} & set(sys.modules), 'imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert __version__ in done.stdout


@pytest.mark.parametrize(
    "command",
    ["run", "up", "down", "status", "worker", "seed", "topics", "why", "dead", "replay", "doctor", "settings", "probe"],
)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` on standard output, exit code 0."""
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"Usage: crawlog {command}" in capsys.readouterr().out


@pytest.mark.parametrize("group", [[], ["dead"], ["engine"], ["pages"], ["key"]])
def test_a_group_without_a_command_explains_itself_on_standard_error(group: list[str], crawlog: Command) -> None:
    """Exit code 2: standard output is for answers, and none was asked for."""
    done = crawlog(*group)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Usage: {' '.join(['crawlog', *group])} [OPTIONS] COMMAND" in done.stderr


def test_run_says_that_it_needs_a_browser_before_it_starts_anything(crawlog: Command) -> None:
    """With the command that gets one."""
    done = crawlog("run", "http://a.example/", "-s", "render=auto", "-s", "render.browser=/nowhere/chromium")
    assert done.returncode == 2
    assert "render.browser = /nowhere/chromium is no program" in done.stderr
    assert "apt install chromium" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="Chromium has a sandbox unless root starts it")
def test_run_as_root_says_that_it_renders_without_a_sandbox_only_if_told_to(crawlog: Command) -> None:
    """Before it starts anything; doctor says the same."""
    rendering = ("-s", "render=auto", "-s", "render.browser=/bin/sh")
    for command in (("run", "http://a.example/"), ("doctor",)):
        done = crawlog(*command, *rendering)
        assert done.returncode != 0
        assert "root" in done.stdout + done.stderr
        assert "-s render.sandbox=false" in done.stdout + done.stderr


def test_doctor_says_what_to_do_next(crawlog: Command) -> None:
    """A line each, with status; an unreachable broker is a failure with an advice."""
    done = crawlog("doctor", "--bootstrap", UNREACHABLE, "--json")
    findings = {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 3
    assert findings["packages"]["status"] == "ok"
    assert findings["cluster"]["status"] == "fail"
    assert UNREACHABLE in findings["cluster"]["found"]
    assert findings["cluster"]["advice"]


def test_doctor_leaves_no_folder_behind(crawlog: Command, tmp_path: Path) -> None:
    """It looks, it does not make."""
    crawlog("doctor")
    assert list(tmp_path.iterdir()) == []


LOOKS = [
    ["topics"],
    ["control", "list"],
    ["verify"],
    ["why", "http://a.example/"],
    ["dead", "list"],
    ["dead", "show", "0"],
    ["dead", "redrive", "--all"],
    ["dead", "drop", "--all"],
    ["replay", "--group", "parse", "--to-earliest"],
]


@pytest.mark.parametrize("look", [*LOOKS, ["repair"], ["repair", "--execute"]])
@pytest.mark.parametrize("folder", [".crawlog", "empty"])
def test_a_look_at_no_crawl_makes_none(crawlog: Command, tmp_path: Path, look: list[str], folder: str) -> None:
    """No data folder and no broker, where a folder is misspelled or holds no log: it says how to name the right one."""
    (tmp_path / "empty").mkdir()
    done = crawlog(*look, "--data", folder)
    assert done.returncode == 2
    assert f"there is no crawl in {folder}" in done.stderr
    assert "--data DIR" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize("look", [["status"], ["down"]])
def test_what_tells_of_no_crawl_makes_none_either(crawlog: Command, tmp_path: Path, look: list[str]) -> None:
    """These say so with exit code 0."""
    assert crawlog(*look).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_down_tells_no_tale_of_the_broker_that_it_stops(crawlog: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed command may have left it, or `verify` or `seed` may be using it."""
    monkeypatch.setattr("crawlog.streams.engine.stop", lambda _: 7)
    assert crawlog("down").stderr == "stopped Apache Kafka (pid 7), which neither `run` nor `up` was using\n"


@pytest.mark.broker
@pytest.mark.parametrize("look", [*LOOKS, ["status"]])
def test_a_look_at_a_cluster_makes_no_topics(crawlog: Command, cluster: Settings, look: list[str]) -> None:
    """Nor does it end as a bug where there are none of this prefix."""
    where = ["--bootstrap", cluster.kafka.bootstrap, "-s", f"kafka.prefix={cluster.kafka.prefix}"]
    done = crawlog(*look, *where)
    assert done.returncode in (0, 2, 3), done.stderr
    assert "internal error" not in done.stderr
    assert done.returncode == 0 or f"`crawlog run {' '.join(where)}`" in done.stderr, done.stderr
    assert crawlog("topics", "--json", *where).stdout == ""


@pytest.mark.broker
def test_the_lines_of_a_job_that_is_not_there_are_an_error(crawlog: Command, cluster: Settings) -> None:
    """A job that has no lines yet is told so."""
    ensure_topics(cluster)
    topics = Topics(cluster.kafka.prefix)
    write_job(cluster, Producer(cluster, "test"), topics, "quiet", JobSpec())
    where = ["--bootstrap", cluster.kafka.bootstrap, "-s", f"kafka.prefix={cluster.kafka.prefix}"]
    done = crawlog("jobs", "logs", "nope", *where)
    assert (done.returncode, "there is no job 'nope'" in done.stderr) == (2, True), done.stderr
    done = crawlog("jobs", "logs", "quiet", *where)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "job quiet has no lines" in done.stderr


def test_a_spider_that_is_no_file_is_told_of_deployed_code(crawlog: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user forgot --project. Who named a file did not."""
    monkeypatch.setattr("crawlog.cli.jobs.fleet_log", lambda settings: settings)
    done = crawlog("submit", "--spider", "quotes")
    assert (done.returncode, "needs --project P" in done.stderr) == (2, True), done.stderr
    assert "--project" not in crawlog("submit", "--spider", "quotes.py").stderr


def test_submit_takes_the_keys_that_it_trusts_itself_where_it_loads_a_deployed_spider(
    crawlog: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would have no effect: workers have their own."""
    taken: list[Settings] = []
    monkeypatch.setattr("crawlog.cli.jobs.fleet_log", taken.append)
    monkeypatch.setattr("crawlog.jobs.submit.submit", lambda *_, **__: JobView("quotes", "running"))
    keys = ("-s", "security.trusted_keys=abc")
    done = crawlog("submit", "--project", "shop", "--spider", "quotes", *keys)
    assert (done.returncode, [one.security.trusted_keys for one in taken]) == (0, [("abc",)]), done.stderr
    done = crawlog("submit", "http://a.test/", *keys)
    assert (done.returncode, "security.trusted_keys: of workers" in done.stderr) == (2, True), done.stderr


def test_submit_beside_a_run_says_that_the_job_waits(
    crawlog: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With --wait it would stand there for ever: the workers of a run fetch for its own job alone."""
    monkeypatch.setattr("crawlog.cli.jobs.fleet_log", lambda settings: settings)
    held = Hold(tmp_path / ".crawlog", "run")
    try:
        done = crawlog("submit", "http://a.test/", "--wait")
        assert (done.returncode, "`crawlog up` crawls it" in done.stderr) == (2, True), done.stderr
        assert "another job waits for `crawlog up`" in crawlog("submit", "--spider", "none.py").stderr
    finally:
        held.release()


@pytest.mark.broker
def test_topics_starts_the_engine_and_stops_it(crawlog: Command, tmp_path: Path) -> None:
    """Commands that need the log leave no broker behind."""
    done = crawlog("topics", "--create", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["name"] for row in rows] == [f"crawl.{kind.name}" for kind in TOPIC_KINDS]
    assert not (tmp_path / ".crawlog" / "kafka" / "broker.json").exists()
    assert crawlog("doctor").stdout.count("not running") == 1


@pytest.mark.broker
def test_doctor_compares_the_cluster_with_the_settings(crawlog: Command, engine: Engine, login: None) -> None:
    """Record size, how long offsets are kept, and the topics' partitions."""
    done = crawlog("doctor", "--bootstrap", engine.bootstrap, "--json")
    findings = {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert findings["broker"]["status"] == findings["group offsets"]["status"] == "ok"
    assert findings["record size"]["status"] == "ok"
    larger = crawlog("doctor", "--bootstrap", engine.bootstrap, "-s", f"kafka.max_record_bytes={64 << 20}", "--json")
    findings = {one["check"]: one for one in map(json.loads, larger.stdout.splitlines())}
    assert findings["record size"]["status"] == "warn"
    assert str(64 << 20) in findings["record size"]["found"]


@pytest.mark.broker
def test_doctor_finds_topics_of_another_size(crawlog: Command, cluster: Settings) -> None:
    """The number of partitions is fixed when the topics are made; the advice is the setting that fits."""
    ensure_topics(cluster)
    prefix = f"kafka.prefix={cluster.kafka.prefix}"
    done = crawlog("doctor", "--bootstrap", cluster.kafka.bootstrap, "-s", prefix, "-s", "kafka.partitions=5", "--json")
    findings = {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert findings["topics"]["status"] == "fail"
    assert f"-s kafka.partitions={cluster.kafka.partitions}" in findings["topics"]["advice"]


SPIDER = """
from crawlog import Spider

class Books(Spider):
    start_urls = ["http://a.example/"]
    settings = {"politeness.delay_s": 3, "fetch.concurrency": 4, "scope": "host"}

    def parse(self, response):
        yield {}
"""


def test_a_spiders_file_brings_seeds_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are weaker than `-s` and stronger than the environment; its seeds count when none is named."""
    ordered: list[Any] = []

    def crawl(settings: Any, _: Any, parts: LocalParts, *__: Any, **___: Any) -> Summary:
        ordered.append((settings, parts.seeds, parts.facts.path if parts.facts else ""))
        return Summary("j", reason="finished")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("crawlog.jobs.run.run", crawl)
    monkeypatch.setenv("CRAWLOG_FETCH__CONCURRENCY", "9")
    (tmp_path / "books.py").write_text(SPIDER)
    for more in ([], ["http://b.example/"], ["-s", "politeness.delay_s=5"]):
        with pytest.raises(SystemExit) as end:
            main(["run", "--spider", "books.py", *more])
        assert end.value.code == 0
    settings, seeds, spider = ordered[0]
    assert (settings.politeness.delay_s, settings.fetch.concurrency, settings.scope.kind) == (3, 4, "host")
    assert (seeds, spider) == (("http://a.example/",), f"{tmp_path}/books.py:Books")
    assert ordered[1][1] == ("http://b.example/",)
    assert ordered[2][0].politeness.delay_s == 5


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("def parse", "deff parse"), "line 8: SyntaxError"),
        (("class Books(Spider)", "class Books(Spidr)"), "line 4: NameError: name 'Spidr' is not defined"),
        (("politeness.delay_s", "politeness.dely_s"), "spider: unknown setting 'politeness.dely_s'; did you mean"),
        (("http://a.example/", "a.example"), "did you mean https://a.example/ ?"),
    ],
)
def test_a_broken_spider_is_refused_before_anything_is_made(
    wrong: tuple[str, str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With exit code 2 and the line; no data folder, no engine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books.py").write_text(SPIDER.replace(*wrong))
    with pytest.raises(SystemExit) as end:
        main(["run", "--spider", "books.py"])
    assert (end.value.code, told in capsys.readouterr().err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["books.py"]


@pytest.mark.parametrize("pair", ["fetch.concurrency=3", "parse.timeout_s=3", "politeness.per_ip=2"])
def test_a_setting_that_no_job_has_is_an_error_of_seed(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be ignored in silence: the workers have their own."""
    with pytest.raises(SystemExit) as end:
        main(["seed", "http://a.example/", "--job", "j", "-s", "scope=host", "-s", "fetch.attempts=2", "-s", pair])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"-s {pair.partition('=')[0]}: of workers, not of a job" in said
    arguments.seed_settings(["scope=host", "kafka.prefix=x", "run.data=d", "canonical.verbatim=true"], [])
    arguments.seed_settings([pair], ["sitemap:http://a.example/sitemap.xml"])
