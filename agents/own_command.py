"""Runs a command of this machine's settings, and ends it with all that it has started."""

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

OWN = "CRAWLOG_"  # Begins the names of settings in the environment


@asynccontextmanager
async def started(command: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process of a command, which is killed at the end of the block if it goes on.

    Its environment has no settings of ours: passwords may be among them.

    Args:
        options: For `asyncio.create_subprocess_exec`; `env` is added to the environment.

    Raises: OSError, ValueError: it cannot be started.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    environ |= options.pop("env", {})
    program, *words = shlex.split(command)
    process = await asyncio.create_subprocess_exec(program, *words, env=environ, start_new_session=True, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
