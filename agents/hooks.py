"""Calls a target at the end of a job, or about an alert: a POST behind the egress guard, or a command of the settings.

HookCall ─► target: URL, or NAME of `hooks.targets` ─┬─ URL ──► POST, signed by `hooks.secret` ──► 2xx: taken
                                                     └─ command ─► the body on its standard input ─► exit code 0: taken
"""

import asyncio
import tempfile
from typing import TYPE_CHECKING

from crawlog import __version__
from crawlog.agents.client import Asker, Client, HttpRequest, LeaseLost
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.hooks import HookCall, signature
from crawlog.streams.url import InvalidUrl, serialise

from .own_command import started

if TYPE_CHECKING:
    from collections.abc import Callable

    from crawlog.streams.settings import Settings

ANSWER_BYTES = 1 << 10  # Of the answer's body, which nobody reads

STDERR = 2  # What a command prints goes there: rows of a `run` may go to standard output

TAKEN = range(200, 300)  # Status codes


class HookCaller:
    """See the module; it has one client, made for the first POST.

    Args:
        may_ask: Whether the worker still holds its lease.
    """

    def __init__(self, settings: "Settings", may_ask: "Callable[[], bool]" = lambda: True) -> None:
        self._settings = settings
        self._may_ask = may_ask
        self._client: Client | None = None

    async def call(self, call: HookCall) -> str:
        """Calls a target once; why it did not take the end, or empty. Raises: LeaseLost: it was not called."""
        hooks = self._settings.hooks
        target = call.target if "://" in call.target else hooks.targets.get(call.target)
        if target is None:
            known = ", ".join(sorted(hooks.targets)) or "none"
            return f"this worker's settings declare no target {call.target} (hooks.targets); there are: {known}"
        return await self.send(target, call.body, call.id)

    async def send(self, target: str, body: bytes, delivery: str) -> str:
        """Sends JSON to a URL, or runs a command with it; why it was not taken, or empty.

        Args:
            delivery: Identifies what is sent: a receiver that gets it twice may drop the second one.

        Raises: LeaseLost: nothing was sent.
        """
        if target.startswith(("http://", "https://")):
            return await self._post(target, body, delivery)
        return await self._run(target, body)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _post(self, url: str, body: bytes, delivery: str) -> str:
        hooks = self._settings.hooks
        headers = [("Content-Type", "application/json"), ("X-Crawlog-Delivery", delivery)]
        if hooks.secret:
            headers.append(("X-Crawlog-Signature", signature(hooks.secret, body)))
        try:
            place = serialise(url)
        except (InvalidUrl, ValueError) as error:
            return f"no URL: {error}"
        if self._client is None:
            self._client = Client(self._settings, f"crawlog/{__version__}", self._may_ask)
        answer = await self._client.get(
            HttpRequest(
                place,
                any_type=True,
                max_bytes=ANSWER_BYTES,
                asker=Asker(is_anonymous=True),
                within_s=hooks.timeout_s,
                record=RequestRecord("POST", headers=tuple(headers), body=body, keeps_cookies=False),
            )
        )
        answer.held.give()
        if answer.http is None:
            hint = "; -s network.allow_private=true of the workers allows it" if answer.is_closed else ""
            return f"{answer.reason}{hint}"
        return "" if answer.http in TAKEN else f"it answered {answer.http}"

    async def _run(self, command: str, body: bytes) -> str:
        limit_s = self._settings.hooks.timeout_s
        with tempfile.TemporaryFile() as given:  # a pipe of asyncio's is a socket, which no program opens as /dev/stdin
            given.write(body)
            given.seek(0)
            try:
                async with asyncio.timeout(limit_s), started(command, stdin=given, stdout=STDERR) as process:
                    code = await process.wait()
            except TimeoutError:
                return f"the command did not end within {limit_s:g} s (hooks.timeout_s)"
            except (OSError, ValueError) as error:
                return f"the command cannot be started: {error}"
        return f"the command ended with code {code}" if code else ""


async def call_in_time(caller: HookCaller, call: HookCall) -> str | None:
    """`HookCaller.call`; None if the worker has lost its lease, and called nobody."""
    try:
        return await caller.call(call)
    except LeaseLost:
        return None
