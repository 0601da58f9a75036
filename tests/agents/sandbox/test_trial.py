"""Pages tried in a real child process: what passes, what does not, and what becomes of the child."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawlog.agents.sandbox import trial as trials
from crawlog.agents.sandbox.trial import NICE, Trial, TrialHistory
from crawlog.agents.sandbox.zygote import ChildGone
from crawlog.streams.errors import TrialError
from crawlog.streams.html.cost import FAILURES, MOST_TAGS, Allowances, TrialOutcome, is_simple
from crawlog.streams.settings.machine import Parse
from tests.support.processes import Process

HTML = "text/html"
HONEST = b"<ul>" + b"<li><a href=/a>some words</a></li>" * (MOST_TAGS // 4)
SLOW = b"<div>x</p>" * 20_000
HUNGRY = b"<div>" + b"".join(b"<font a=%d>" % n for n in range(1300)) + b"</div>" + b"<p>x" * 1300
ENDLESS = b"<div>x</p>" * 700_000


@pytest.fixture
def trial() -> Iterator[Trial]:
    """With a limit of a quarter of a second at most."""
    trial = Trial(Parse(timeout_s=1.0))
    yield trial
    trial.close()


def child_of(trial: Trial) -> int:
    """The process that tries pages."""
    assert trial._zygote is not None
    return trial._zygote.pid


def wait_for(is_so: "object", what: str) -> None:
    """Until it is so."""
    for _ in range(3000):
        if is_so():  # type: ignore[operator]  # a claim
            return
        time.sleep(0.01)
    raise AssertionError(what)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children(pid: int) -> list[int]:
    """Processes of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_simple_page_starts_no_process(trial: Trial) -> None:
    """It costs a count of its tags."""
    assert trial.refused(b"<p>well", HTML, "a.test") == ""
    assert trial._zygote is None


def test_an_honest_page_passes_and_its_child_stays(trial: Trial) -> None:
    """One process for all pages."""
    assert not is_simple(HONEST)
    assert trial.refused(HONEST, HTML, "a.test") == ""
    child = child_of(trial)
    assert trial.refused(HONEST, HTML, "a.test") == ""
    assert child_of(trial) == child


@pytest.mark.parametrize("page", [SLOW, b"<div><table></div></table>" * 20_000])
def test_a_page_that_takes_too_long_is_too_complex_and_its_child_stays(trial: Trial, page: bytes) -> None:
    """What the kernel ends is a process of that page's alone; the next page passes."""
    assert trial.refused(page, HTML, "a.test").startswith("too_complex: its HTML takes the parser more than 0.")
    child = child_of(trial)
    assert trial.refused(HONEST, HTML, "a.test") == ""
    assert child_of(trial) == child


def test_a_trial_comes_after_other_work(trial: Trial) -> None:
    """A page that may be in vain must not keep fetching waiting where processors are few."""
    assert trial.refused(HONEST, HTML, "a.test") == ""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, child_of(trial)) == min(own + NICE, 19)


def test_a_page_that_wants_too_much_memory_is_too_complex(trial: Trial) -> None:
    """32 kB become 1.7 million elements."""
    trial._allowances = Allowances(60.0, 256)
    assert trial.refused(HUNGRY, HTML, "a.test").startswith("too_complex: the parser refuses its HTML, or wants more")


def test_a_page_is_tried_as_it_is_parsed(trial: Trial) -> None:
    """In its own encoding, and with its templates opened: what stands in them is parsed the second time."""
    assert trial.refused(SLOW.decode().encode("utf-16"), HTML, "a.test").startswith("too_complex")
    assert trial.refused(b"<template>" + SLOW + b"</template>", HTML, "b.test").startswith("too_complex")


def test_a_child_that_was_killed_is_started_again(trial: Trial) -> None:
    """Between two pages, and while it has one."""
    assert trial.refused(HONEST, HTML, "a.test") == ""
    child = child_of(trial)
    os.kill(child, signal.SIGKILL)
    assert trial.refused(HONEST, HTML, "a.test") == ""
    child = child_of(trial)

    def kill() -> None:
        wait_for(lambda: children(child), "nothing was tried")
        os.kill(child, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    assert trial.refused(SLOW, HTML, "a.test").startswith("too_complex: its HTML takes")
    killing.join()
    assert child_of(trial) != child


def test_a_child_that_does_not_answer_is_ended(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was stopped: another one tries the page."""
    monkeypatch.setattr(trials, "PATIENCE_S", 2.0)
    assert trial.refused(HONEST, HTML, "a.test") == ""
    child = child_of(trial)
    os.kill(child, signal.SIGSTOP)
    assert trial.refused(HONEST, HTML, "a.test") == ""
    assert is_gone(child)


def test_without_a_child_there_is_no_verdict(trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither where it cannot be started, nor where what is started ends at once; then the caller is told."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(TrialError, match="FileNotFoundError"):
        trial.refused(HONEST, HTML, "a.test")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TrialError, match="no trial of a page"):
        trial.refused(HONEST, HTML, "a.test")


def test_a_closed_trial_starts_nothing_more(trial: Trial) -> None:
    """A worker that stops while a page is tried waits for nothing."""
    told: list[str] = []

    def refused() -> None:
        try:
            trial.refused(ENDLESS, HTML, "a.test")
        except TrialError as error:
            told.append(str(error))

    trial._allowances = Allowances(600.0, 2048)
    trying = threading.Thread(target=refused)
    trying.start()
    wait_for(lambda: trial._zygote is not None and children(trial._zygote.pid), "nothing was tried")
    child = child_of(trial)
    (page,) = children(child)
    trial.close()
    trying.join(10)
    assert told
    wait_for(lambda: is_gone(child) and is_gone(page), "it goes on")


def test_the_child_and_its_page_end_with_the_worker() -> None:
    """A worker that is killed leaves nothing behind that goes on for minutes."""
    code = (
        "import threading, time\nfrom crawlog.agents.sandbox.trial import Trial\n"
        "from crawlog.streams.settings import Parse\n"
        "trial = Trial(Parse())\ntrial._allowances._timeout_s = 6000.0\n"
        "threading.Thread(target=trial.refused, args=(b'<div>x</p>' * 700_000, 'text/html', 'a.test')).start()\n"
        "while trial._zygote is None: time.sleep(0.01)\nprint(trial._zygote.pid, flush=True)\n"
    )
    with Process([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        wait_for(lambda: children(child), "nothing was tried")
        (page,) = children(child)
        worker.kill()
    wait_for(lambda: is_gone(child) and is_gone(page), "it goes on")


def test_what_a_domain_took_outlives_a_killed_worker(tmp_path: Path) -> None:
    """Its next odd page may take what is fair, as before; a damaged line is left out; a clean end leaves nothing."""
    path = tmp_path / "trials" / "parse-0.jsonl"
    killed = Trial(Parse(timeout_s=15.0), TrialHistory(path))
    first = killed._allowances.limits("bad.test", SLOW)
    for _ in range(FAILURES):
        assert killed.refused(SLOW, HTML, "bad.test").startswith("too_complex")
    with path.open("a") as file:
        file.write('["bad.test", tru\n')
    limits = killed._allowances.limits("bad.test", SLOW)
    killed._drop()
    again = Trial(Parse(timeout_s=15.0), TrialHistory(path))
    assert again._allowances.limits("bad.test", SLOW) == limits
    assert limits.cpu_s < first.cpu_s
    assert again._allowances.is_odd("bad.test")
    assert again.refused(SLOW, HTML, "bad.test").startswith("too_complex")
    again.close()
    assert list(path.parent.iterdir()) == []


def test_a_file_of_outcomes_is_bounded_and_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it remembers is worth less than the disk, or the worker."""
    monkeypatch.setattr(trials, "OUTCOMES_BYTES", 100)
    outcomes = TrialHistory(tmp_path / "some.jsonl")
    for number in range(50):
        outcomes.add(TrialOutcome(f"{number}.test", 0.5, 0.25, passed=False))
    assert [one.domain for one in outcomes.read()][-1] == "49.test"
    assert (tmp_path / "some.jsonl").stat().st_size < 200
    (tmp_path / "file").touch()
    nowhere = TrialHistory(tmp_path / "file" / "some.jsonl")
    nowhere.add(TrialOutcome("a.test", 0.5, 0.25, passed=False))
    assert list(nowhere.read()) == []
    nowhere.close()


def test_while_many_wait_pages_of_a_domain_whose_others_failed_are_refused_unseen(trial: Trial) -> None:
    """Other domains' are tried, and so are its own when no more wait: a redrive gives them that."""
    for _ in range(FAILURES):
        assert trial.refused(SLOW, HTML, "bad.test").startswith("too_complex")
    tried = trial.tried
    assert trial.refused(HONEST, HTML, "bad.test", waiting=trials.MANY_WAIT).startswith(
        "too_complex: most pages of bad.test"
    )
    assert trial.tried == tried
    assert trial.refused(HONEST, HTML, "good.test", waiting=trials.MANY_WAIT) == ""
    assert trial.refused(HONEST, HTML, "bad.test", waiting=trials.MANY_WAIT - 1) == ""


async def test_pages_that_wait_for_their_trial_hold_no_shared_thread(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are looked up, and pages unpacked, in those threads."""
    loop, begun, goes_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def asked(*_: object) -> ChildGone:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait()
        return ChildGone(0, 0, 0.0)

    monkeypatch.setattr(trial, "_asked", asked)
    verdicts = [asyncio.create_task(trial.refusal(HONEST, HTML, "a.test")) for _ in range(40)]
    try:
        await begun.wait()
        assert await asyncio.wait_for(asyncio.to_thread(int), 30) == 0
    finally:
        goes_on.set()
    assert await asyncio.gather(*verdicts) == [""] * 40


def test_a_worker_with_more_than_a_thousand_descriptors_tries_pages_too(trial: Trial) -> None:
    """`select` takes none from 1,024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert trial.refused(HONEST, HTML, "a.test") == ""
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
