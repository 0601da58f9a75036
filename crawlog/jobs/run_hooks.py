"""Calls what `run --on-finish` names, once the job has ended and the files of the command are made.

Its record names no target, so that no worker calls one before FILE is there. Notes in crawl.control keep the same
command from calling again for the same end.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from crawlog.streams.control import read_control, write_control
from crawlog.streams.hooks import hook_calls
from crawlog.streams.log import Topics

if TYPE_CHECKING:
    from crawlog.streams.hooks import HookCall
    from crawlog.streams.log import Producer
    from crawlog.streams.settings import Settings

TRIES = 3  # Of one command

AGAIN_S = 2.0  # Pause between two tries, seconds


def call_hooks(
    settings: "Settings", producer: "Producer", job: str, targets: tuple[str, ...], say: Callable[[str], None]
) -> None:
    """Calls these targets, unless the job has not ended, or its end was called already.

    Raises: EngineError: the log does not answer.
    """
    if targets:
        topics = Topics(settings.kafka.prefix)
        calls = hook_calls(read_control(settings, topics), job, targets)
        notes = [call.note(asyncio.run(_called(settings, call, say)), time.time()) for call in calls]
        write_control(producer, topics, notes)


async def _called(settings: "Settings", call: "HookCall", say: Callable[[str], None]) -> str:
    from crawlog.agents.hooks import HookCaller

    caller, error = HookCaller(settings), ""
    try:
        for left in reversed(range(TRIES)):
            if not (error := await caller.call(call)):
                return ""
            say(f"--on-finish {call.target}: {error}" + ("" if left else "; the same command tries again"))
            if left:
                await asyncio.sleep(AGAIN_S)
    finally:
        await caller.close()
    return error
