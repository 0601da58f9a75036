"""What doctor finds on this machine; clusters are in test_main.py."""

from pathlib import Path

import pytest

from crawlog.commands import doctor
from crawlog.commands.doctor import Finding, examine
from crawlog.streams.log import TOPIC_KINDS
from crawlog.streams.settings import Settings, load


def _found(check: str, **settings: object) -> Finding:
    [finding] = [one for one in examine(load(settings)) if one.check == check]
    return finding


@pytest.fixture
def browser(tmp_path: Path) -> str:
    """A program that has a version."""
    path = tmp_path / "chromium"
    path.write_text("#!/bin/sh\necho Chromium 1.2\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("uid", "sandbox", "status", "told"),
    [
        (0, True, "warn", "JavaScript pages need Chromium's sandbox, and Chromium has none when root starts it."),
        (0, False, "warn", "without a sandbox"),
        (1000, False, "warn", "without a sandbox"),
        (1000, True, "ok", "Chromium 1.2"),
    ],
)
def test_a_missing_sandbox_is_not_ok(
    browser: str, monkeypatch: pytest.MonkeyPatch, uid: int, sandbox: bool, status: str, told: str
) -> None:
    """Of a browser that is there; a machine without one renders nothing."""
    monkeypatch.setattr("os.geteuid", lambda: uid)
    found = _found("browser", **{"render.browser": browser, "render.sandbox": sandbox, "spider.own_user": False})
    assert (found.status, bool(found.advice)) == (status, status == "warn")
    assert told in found.found


@pytest.mark.parametrize(
    ("own_user", "why", "status", "told"),
    [
        (True, "code_refused: deployed code would run as root: another user cannot read /x. Install", "warn", "/x"),
        (True, "", "ok", "runs as a user of its own"),
        (False, "", "warn", "runs as root"),
    ],
)
def test_doctor_says_as_which_user_deployed_code_runs(
    monkeypatch: pytest.MonkeyPatch, own_user: bool, why: str, status: str, told: str
) -> None:
    """Only root can give it another one."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("crawlog.agents.sandbox.child_user.why_root", lambda *, is_own_user: why if is_own_user else "")
    found = _found("deployed code", **{"spider.own_user": own_user})
    assert (found.status, bool(found.advice)) == (status, status == "warn")
    assert told in found.found


def test_doctor_names_missing_topics() -> None:
    """Where there are others; before the first crawl there are none."""
    counts = {f"crawl.{kind.name}": 8 if kind.split else 1 for kind in TOPIC_KINDS if kind.name != "control"}
    found = doctor._topics(Settings(), counts, is_readable=False)
    assert (found.status, found.found.endswith("missing: crawl.control")) == ("warn", True)
    assert doctor._topics(Settings(), {}, is_readable=False).status == "ok"
