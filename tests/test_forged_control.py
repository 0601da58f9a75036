"""Records of crawl.control that a stranger writes, on a cluster that lets everybody write: no code runs, no file is
written outside, and every reader goes on.

FORGED ─► control.decode ─► parse stage, sink's outputs, `start`, coordinator, FleetState, a worker's planned stop

docs/security.md says what such a writer can do: hold, stop and end crawls, and spoil them.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest
from structlog.testing import capture_logs

from crawlog.agents.control import StageCommands
from crawlog.agents.outputs.wanted import WantedOutputs
from crawlog.cli.fleet_text import job_details, job_lines
from crawlog.cli.scheduling import schedule_lines
from crawlog.jobs.schedules import list_schedules, next_runs
from crawlog.processes.starts import Starts
from crawlog.schemas import control
from crawlog.schemas.control import (
    CodeNote,
    Command,
    Control,
    Finished,
    JobCopy,
    Join,
    OutputNote,
    Rewound,
    StartEnded,
    WorkerCommand,
)
from crawlog.schemas.job_orders import CodeRef, OutputSpec
from crawlog.schemas.progress import FLEET, JobCounts, Progress
from crawlog.schemas.schedules import JobSchedule, Planned, RunJob
from crawlog.schemas.urls import (
    CanonicalRules,
    JobOrder,
    JobSpec,
    RenderRules,
    Rewind,
    ScopeSpec,
    TrapRules,
    UrlsRecord,
    encode,
)
from crawlog.service.scrapyd_fleet import local_time
from crawlog.streams.errors import CrawlError
from crawlog.streams.fetch import ReportedJobs
from crawlog.streams.fleet import FleetState
from crawlog.streams.jobs import ControlState, Dues, FleetReports, FollowedJobs
from crawlog.streams.schedules import decide
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink import fleet_sink_of
from crawlog.streams.spiders import Trust
from crawlog.streams.worker import is_for_us, own_process
from crawlog.streams.worker.own_process import began
from tests.support import folding
from tests.support.parsing import Stage, buried, links

NAMES = ["../../x", "/etc/cron.d/x", "a/b", "..", "", "nul\0", "\x1b[2J", "\u202ex", "x" * 5_000, "%2e%2e", "~root"]
"""Odd names of jobs, outputs, workers, projects."""

TIMES = [-1e300, 1e300, 253_402_300_800.0]
"""Moments before and after all calendars."""


class Ground(NamedTuple):
    """A folder with code that leaves a mark where it runs; and beside it a worker's data folder."""

    folder: Path
    data: Path
    marker: Path
    spiders: tuple[str, ...]

    @property
    def settings(self) -> Settings:
        """The worker's."""
        given = Settings()
        run = given.run.model_copy(update={"data": self.data})
        sink = given.sink.model_copy(update={"outputs": {"shop": str(self.data / "shop-{job}.csv")}})
        return given.model_copy(update={"run": run, "sink": sink})

    def outside(self) -> list[str]:
        """All files outside the data folder."""
        every = (path for path in self.folder.rglob("*") if "__pycache__" not in path.parts)
        return sorted(str(path) for path in every if not path.is_relative_to(self.data))


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """Checks after the test that no code ran, and that nothing was written outside the data folder."""
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w')\nfrom crawlog import Spider\nclass S(Spider):\n    name = 's'\n"
    (tmp_path / "data").mkdir(mode=0o700)
    for folder in ("project/pkg", "forgedpackage"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text(code)
        (tmp_path / folder / "spiders.py").write_text(code)
    (tmp_path / "project/scrapy.cfg").write_text("[settings]\ndefault = pkg.spiders\n")
    (tmp_path / "s.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    spiders = (
        f"{tmp_path}/s.py",
        f"{tmp_path}/s.py:S",
        f"{tmp_path}/data/../s.py:S",
        f"{tmp_path}/project:s",
        f"{tmp_path}/project:pkg.spiders:S",
        "forgedpackage:S",
        "forgedpackage.spiders:S",
        "../forgedpackage:S",
        "os:system",
        "",
        ":",
        "/",
        "~nobody/s.py:S",
        "nul\0.py:S",
        "/" + "x" * 5_000 + ".py:S",
        "\ud7ff.py",
    )
    made = Ground(tmp_path, tmp_path / "data", marker, spiders)
    before = made.outside()
    yield made
    assert not marker.exists()
    assert made.outside() == before


def specs(ground: Ground) -> Iterator[JobSpec]:
    """Job records: code that is not trusted, and rules that no command writes."""
    outputs = tuple(OutputSpec(name, declared=is_declared) for name in NAMES for is_declared in (False, True))
    outputs += (OutputSpec(str(ground.folder / "out.jsonl")), OutputSpec("ok.jsonl"), OutputSpec("shop", declared=True))
    for spider in ground.spiders:
        plain = JobSpec(spider=spider, starts=True, pipelines=True, outputs=outputs)
        yield plain
        yield msgspec.structs.replace(plain, code=CodeRef("p", "../1", "0" * 64))
        yield msgspec.structs.replace(plain, scrapy=(("ITEM_PIPELINES", '{"os.system": 1}'), ("LOG_FILE", "/etc/x")))
    for at in TIMES:
        yield JobSpec(at=at, changed_at=at, rev=-(2**63), max_pages=-1, items=(-1, 2**63))
    broken = ("(", "(?P<", "\\C", "a{99999}", "(?=x)", "[", "x" * 100_000)
    for pattern in broken:
        yield JobSpec(scope=ScopeSpec(include=(pattern,), names=(pattern,)), max_depth=-1, max_redirects=-1)
        yield JobSpec(render=RenderRules(mode="always", include=(pattern,)), fingerprint_headers=(pattern, ""))
        yield JobSpec(canonical=CanonicalRules(drop_params=(pattern, "*", ""), index_files=("", pattern, "/")))
    yield JobSpec(traps=TrapRules(-1, -1, -1, strays=-1, hosts=-1))
    yield JobSpec(links=("*", "", "a b", "]]"), token="", max_links=-1, max_url_length=-1)


def forged(ground: Ground) -> list[Control]:
    """One record of each kind and oddity, the job records first."""
    made: list[Control] = [JobCopy(f"j{number}", spec) for number, spec in enumerate(specs(ground))]
    jobs = [one.job for one in made if isinstance(one, JobCopy)]
    made += [JobCopy(name, JobSpec(outputs=(OutputSpec("ok.jsonl"),), starts=True), epoch=-1) for name in NAMES]
    for name in [*jobs, *NAMES]:
        for at in TIMES:
            made += [
                Finished(name, at, urls=(-1,) * 99, pages=(2**62,), items=(-5, 0, 2**62), counts=JobCounts(queued=-9)),
                StartEnded(name, at, epoch=-7, requests=-1, error="\x1b[2J\n" * 9),
                OutputNote(name, "ok.jsonl", at, rev=1, rows=-1, place="/etc/passwd", error="\0"),
                WorkerCommand(name, -1, at, "drain"),
                WorkerCommand("parse-0", os.getpid(), at),
                CodeNote(name, "../1", hidden=False, at=at),
                CodeNote("p", name, hidden=False, revoked=True, at=at),
            ]
        made.append(Join(name, "../..", ("", "\0", "x" * 999)))
    made += [Rewound(1, start={0: 0}, end={0: 9}, pages={0: 3}, before=dict.fromkeys(jobs, 0), complete=True)]
    made += [
        JobSchedule("s1", 1 << 36, (RunJob(next(specs(ground)), seeds=("/etc/passwd", "-")),), every_s=1 << 36),
        JobSchedule("s2", 0, cron="* * * * *", zone="../../etc/passwd", catch_up="all"),
        JobSchedule("s3", 0, request={"submit": {"urls": 7}}, cron="R R R R R"),
        Planned("s1", 1 << 36, 1 << 36, 1 << 36, ("../../x", "j1"), waiting=(0,) * 99, error="\x1b[2J"),
    ]
    made += [Command("stop", job=name, reason="\x1b]0;x\a", at=1e300) for name in NAMES[:4]]
    return made


def heard(ground: Ground) -> list[tuple[bytes, Control]]:
    """The forged records as readers get them, under keys of their own, and under those of others."""
    records = [(control.key(one), control.encode(one)) for one in forged(ground)]
    records += [(key.partition(b"/")[0] + b"/j0", value) for key, value in records]
    records += [(key + b"/../\xff\x00", value) for key, value in records[:50]]
    decoded = []
    for key, value in records:
        try:
            record = control.decode(key, value)
        except ValueError:
            continue  # it becomes a dead letter
        assert record is not None
        decoded.append((key, record))
    assert {type(one) for _, one in decoded} == {type(one) for one in forged(ground)}
    return decoded


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b"{}"),
        (b"job/\xff\xfe", b"\xff"),
        (b"job/x", b"[" * 200_000),
        (b"job/x", b'{"v":1,"job":"x","spec":{"scope":{"kind":"file"}}}'),
        (b"job/x", b'{"v":1,"job":"\\ud800","spec":{}}'),
        (b"job/x", b'{"v":1,"job":"x","spec":{},"epoch":1e999}'),
        (b"job/x", b'{"v":1,"job":"x","spec":{"code":{"project":"p","version":"1","sha256":"../../x"}}}'),
        (b"command/job/\xff", None),
        (b"command/../x", None),
        (b"command/host/file:///etc", None),
        (b"command/job/x", b'{"v":1,"action":"stop","job":"y"}'),
        (b"command/stage/x", b'{"v":1,"action":"pause","stage":"../x"}'),
        (b"worker/x", b'{"v":1,"worker":"x","pid":1,"started":1,"action":"exec"}'),
        (b"missing/x", b'{"v":1,"job":"x","url":"file:///etc/passwd","sketch":1}'),
        (b"unknown/x", b"{}"),
    ],
)
def test_what_no_record_may_say_is_no_record(key: bytes, value: bytes | None) -> None:
    """For any bytes the one error is ValueError, at which readers go on."""
    with pytest.raises(ValueError, match=r"."):
        control.decode(key, value)


@pytest.mark.parametrize(
    "rewound",
    [
        Rewound(0, before={"j": 0}, complete=True),
        Rewound(5, before={"j": 5}, complete=True),
        Rewound(5, before={"j": -1}),
        Rewound(70_000),
        Rewound(5, start={0: -9}),
        Rewound(5, pages={3: 1}, complete=True),
        Rewound(5, start={3: 1}, pages={3: 1}, complete=True),
    ],
)
def test_a_rewind_that_cannot_be_is_no_record(rewound: Rewound) -> None:
    """One that began its own epoch had every sink worker count epochs for ever."""
    with pytest.raises(ValueError, match="rewind"):
        control.decode(control.key(rewound), control.encode(rewound))


def test_parse_runs_no_code_of_a_strangers_job(ground: Ground) -> None:
    """Its pages become dead letters, those of other jobs are parsed; whatever else is in crawl.control."""
    stage = Stage(trust=Trust())
    with capture_logs() as logs:
        for _, record in heard(ground):
            stage.stage.learn(record)
        for number, spec in enumerate(specs(ground)):
            offset = stage.take(links("x"), job=f"j{number}", rev=spec.rev)
            assert not spec.spider or offset in dict(buried(stage)), spec.spider
    assert "job_broken" in {line["event"] for line in logs}  # once for all its pages
    assert not any(child.loaded for child in stage.children)
    letters = len(buried(stage))
    stage.take(links("good"))
    stage.stage.flush()
    stage.log.acknowledge()
    assert len(buried(stage)) == letters
    assert "http://a.test/good" in [found.url for found in stage.founds()]


HUGE = (-1, 0, 2**31, 2**32, 2**63 - 1, 2**64 - 1)


def forged_urls(ground: Ground) -> Iterator[UrlsRecord]:
    """Records of crawl.urls: jobs of each oddity, and orders and rewinds with numbers of any size."""
    for number, spec in enumerate(specs(ground)):
        yield UrlsRecord(job=f"j{number}", spec=spec)
    for name in NAMES:
        yield UrlsRecord(job=name, spec=JobSpec())
    for number in HUGE:
        yield UrlsRecord(job=f"h{number}", spec=JobSpec(number))
        yield UrlsRecord(job=f"h{number}", order=JobOrder(number, "paused", at=1e300))
        yield UrlsRecord(job="j0", epoch=number, order=JobOrder(number, "deleted", at=-1e300))
        yield UrlsRecord(job="j0", epoch=number, rewind=Rewind(number))


def test_the_fold_takes_what_a_stranger_wrote_into_crawl_urls_and_goes_on(ground: Ground) -> None:
    """In partition 0, which decides on orders, and in another one; with a restart behind all."""
    for partition in (0, 1):
        state = folding.State(partition=partition)
        state.take(*map(encode, forged_urls(ground)))
        assert {"j0", "../../x", f"h{HUGE[-2]}"} <= set(state.fold.jobs)
        state.checkpoint()
        state.open()
        *_, effects = state.take(folding.job("ours"), folding.found(folding.A, job="ours"))
        assert (state.urls(), list(effects.forward)) == (([folding.A], []) if partition == 0 else ([], [0]))


def test_a_sink_worker_writes_no_file_of_a_stranger_outside_its_folder(ground: Ground) -> None:
    """Each output is refused, or lies below `sink.folder` or where the worker's own settings put it."""
    wanted, settings = WantedOutputs(), ground.settings
    for _, record in heard(ground):
        wanted.heard(record)
    places, refused = set(), 0
    for job in wanted.names():
        for one in wanted.of(job):
            try:
                spec = fleet_sink_of(settings, job, one.output, one.since, one.voids, pipelines=one.spec.pipelines)
            except (CrawlError, OSError):
                refused += 1
            else:
                places.add(Path(spec.output).parent.parent.name)
                assert Path(spec.output).resolve().is_relative_to(ground.data.resolve())
    assert refused > len(NAMES)
    assert places == {"outputs", ground.folder.name}
    assert wanted.of("j0")


class _FakeWatch:
    def control_end(self) -> int:
        return 1


class _FakeSupervisor:
    watch = _FakeWatch()
    picture = FleetReports()

    def __init__(self, settings: Settings) -> None:
        self.settings = settings


class _Begun:
    """A `start` that would run."""

    made: ClassVar[list[JobCopy]] = []
    is_running = True
    is_loading = False

    def __init__(self, copy: JobCopy, *_: Any) -> None:
        self.made.append(copy)

    def look(self) -> None:
        """Nothing."""


def test_no_start_of_a_strangers_file_is_run(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that of deployed code goes on, whose child asks for a signature before it loads anything."""
    state = ControlState()
    for key, record in heard(ground):
        state.take(key, record)
    monkeypatch.setattr("crawlog.streams.control.read_control", lambda *_, **__: state)
    monkeypatch.setattr("crawlog.processes.starts.Starting", _Begun)
    monkeypatch.setattr(_Begun, "made", [])
    starts = Starts(_FakeSupervisor(ground.settings), lambda _: None)  # type: ignore[arg-type]  # as much as is needed
    starts.look()
    assert [copy.job for copy in _Begun.made if copy.spec.code is None] == []


def test_the_fleets_view_shows_what_a_stranger_wrote_and_goes_on(ground: Ground) -> None:
    """Jobs, as text and as JSON, at moments that no calendar knows too; commands, code notes, workers."""
    state = FleetState()
    for key, record in heard(ground):
        state.hear(key, record)
    names = {one.job: JobCounts(queued=-1, in_flight=2**60) for one in forged(ground) if isinstance(one, JobCopy)}
    state.report(Progress("\x1b[2J", "fetch", 99, -1e300, pid=-1, jobs=names, started=1e300), 1e300)
    views = state.jobs()
    assert {"j1", "../../x"} <= {view.name for view in views}
    assert msgspec.json.encode([views, state.workers(0.0), state.hosts(0.0), state.code_notes()])
    assert job_lines(views)
    for view in views:
        assert job_details(view)
        assert local_time(view.submitted_at)
        assert local_time(view.ended_at)


def test_the_coordinator_and_the_reports_stand_a_strangers_records(ground: Ground) -> None:
    """They give orders at most: nothing here reads or writes a file."""
    followed, reported, orders = FollowedJobs(), ReportedJobs(), StageCommands("fetch")
    for _, record in heard(ground):
        followed.take(record)
        reported.heard(record)
        orders.take(record)
    orders.caught_up()
    picture, dues = FleetReports(), Dues(FollowedJobs())
    picture.sink = FLEET
    picture.take(Progress("f", "fetch", 0, 0.0, 5, jobs={"j0": JobCounts(queued=-1, fetched=2**60)}))
    for _ in range(3):
        dues.of_open(followed.open.values(), picture, lambda _: (1, 1, 1, 1))
        dues.of_finished(followed.finished, picture)
    assert orders.works
    assert followed.open


def test_schedules_that_a_stranger_wrote_are_listed_and_decided(ground: Ground) -> None:
    """With a year that no calendar knows, a zone that is a path, a request that is none; an odd name is refused."""
    state = ControlState()
    for key, record in heard(ground):
        state.take(key, record)
    views = list_schedules(state)
    assert [(view.name, bool(view.error)) for view in views] == [("s1", True), ("s2", True), ("s3", True)]
    assert schedule_lines(views)
    assert next_runs(state, count=1_000)
    now = float(1 << 37)
    (one, *_), (note,) = state.of(JobSchedule), state.of(Planned)
    assert decide(one, note, now, is_open=False).begins
    for name in NAMES:
        with pytest.raises(ValueError, match="no schedule can be named"):
            control.decode(b"schedule/" + name.encode(), control.encode(JobSchedule(name, 0, every_s=1)))


def test_an_order_to_a_worker_reaches_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must name worker, pid and start as they are; then this very process gets SIGTERM."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, signal: killed.append((pid, signal)))
    monkeypatch.setattr(own_process, "_ordered", {})
    own = began()
    for pid in (0, -1, 1, os.getppid(), os.getpid()):
        for started in (*TIMES, 0.0, own):
            is_own = (pid, started) == (os.getpid(), own)
            assert is_for_us(WorkerCommand("fetch-0", pid, started), "fetch-0") is is_own
    assert not is_for_us(WorkerCommand("fetch-1", os.getpid(), own), "fetch-0")
    own_process.stop_as_ordered(WorkerCommand("fetch-0", 1, own))
    assert killed == [(os.getpid(), 15)]
