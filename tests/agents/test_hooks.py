"""A call at the end of a job: posted behind the egress guard, or given to a command."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from crawlog.agents.client import LeaseLost
from crawlog.agents.hooks import HookCaller, call_in_time
from crawlog.schemas.control import JobCopy
from crawlog.schemas.urls import JobSpec
from crawlog.streams.hooks import HookCall, signature
from crawlog.streams.settings.sources import load
from tests.support.sites import Site, sites

BODY = b'{"job": "j"}'


def call(target: str) -> HookCall:
    """A call of the end of job j."""
    return HookCall(JobCopy("j", JobSpec(rev=3)), target, 0, 0.0, BODY)


async def called(target: str, **settings: object) -> str:
    """Why a target did not take the end."""
    given = {key.replace("__", "."): str(value) for key, value in settings.items()}
    caller = HookCaller(load({"hooks.secret": "s3cret", "hooks.timeout_s": "20"} | given))
    try:
        return await caller.call(call(target))
    finally:
        await caller.close()


async def test_a_url_gets_the_end_signed() -> None:
    """As JSON, with the name of the end. No cookie and no login goes with it."""
    site = Site(body=b"")
    async with sites(site):
        assert not await called(f"{site.origin}/done?x=1", network__allow_private="true")
    head, _, body = site.requests[0].partition("\r\n\r\n")
    assert head.startswith("POST /done?x=1 HTTP/1.1")
    assert site.got("Content-Type") == ["application/json"]
    assert site.got("X-Crawlog-Delivery") == ["j/0/3"]
    assert site.got("X-Crawlog-Signature") == [signature("s3cret", BODY)]
    assert site.got("Content-Length") == [str(len(BODY))]
    assert not body
    assert not site.got("Cookie")


@pytest.mark.parametrize("status", ["500 Internal Server Error", "302 Found", "404 Not Found"])
async def test_any_answer_but_2xx_is_a_failure(status: str) -> None:
    """A redirect is not followed: the signature is for the URL that was named."""
    site = Site(status=status, headers="Location: /elsewhere\r\n")
    async with sites(site):
        said = await called(f"{site.origin}/", network__allow_private="true")
    assert said == f"it answered {status[:3]}"
    assert len(site.requests) == 1


async def test_a_private_address_is_not_called_unless_the_worker_allows_it() -> None:
    """Whoever may submit a job could reach services of the workers' network otherwise."""
    site = Site()
    async with sites(site):
        said = await called(f"{site.origin}/")
    assert "private_address" in said
    assert "network.allow_private" in said
    assert not site.requests


async def test_a_command_gets_the_end_on_its_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is declared in the settings, and gets none of them: passwords may be among them."""
    monkeypatch.setenv("CRAWLOG_KAFKA__SASL_PASSWORD", "geheim")
    file, code = (
        tmp_path / "end.json",
        "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(open('/dev/stdin').read())",
    )
    code += "; sys.exit(any(name.startswith('CRAWLOG_') for name in os.environ))"
    targets = json.dumps({"keep": f'{sys.executable} -c "{code}" {file}'})
    assert not await called("keep", hooks__targets=targets)
    assert file.read_bytes() == BODY


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("false", "ended with code 1"),
        ("/no/such/program", "cannot be started"),
        ("'", "cannot be started"),
        ("", "cannot be started"),
        ("true", ""),
    ],
)
async def test_a_command_that_fails_has_not_taken_the_end(command: str, said: str) -> None:
    """One that reads nothing has."""
    error = await called("it", hooks__targets=json.dumps({"it": command}))
    assert said in error
    assert bool(said) == bool(error)


async def test_a_command_that_does_not_end_has_not_taken_the_end() -> None:
    """Its time is a setting."""
    said = await called("it", hooks__targets='{"it": "sleep 600"}', hooks__timeout_s="0.5")
    assert said == "the command did not end within 0.5 s (hooks.timeout_s)"


async def test_a_command_is_killed_with_what_it_started(tmp_path: Path) -> None:
    """The worker gives its duty up meanwhile: the next call finds no other one at work."""
    file = tmp_path / "pid"
    command = f"sh -c 'sleep 600 & echo $! > {file}.new; mv {file}.new {file}; wait'"
    call_under_way = asyncio.create_task(called("it", hooks__targets=json.dumps({"it": command})))
    async with asyncio.timeout(60):
        while not file.exists():  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.02)
        call_under_way.cancel()
        await asyncio.wait([call_under_way])
        process = Path("/proc") / file.read_text().strip() / "stat"
        while process.exists() and process.read_text().split()[2] != "Z":  # noqa: ASYNC110  # a kill is not waited for
            await asyncio.sleep(0.02)


async def test_a_name_that_is_not_declared_here_is_named_with_those_that_are() -> None:
    """Another worker may declare it, or this one later."""
    said = await called("post", hooks__targets='{"mail": "true"}')
    assert said == "this worker's settings declare no target post (hooks.targets); there are: mail"


async def test_a_worker_without_its_lease_calls_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor does."""

    async def stopped(_: HookCall) -> str:
        raise LeaseLost

    caller = HookCaller(load({}))
    monkeypatch.setattr(caller, "call", stopped)
    assert await call_in_time(caller, call("it")) is None
