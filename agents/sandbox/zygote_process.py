"""A zygote as its worker sees it: started once, then forks and kills a child at orders."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator

import msgspec

from .limits import ChildLimits
from .printed import Printed
from .zygote import ForkOrder, ZygoteWord

PASSED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH"),
    *("SCRAPY_PROJECT", "SCRAPY_SETTINGS_MODULE"),  # which settings of a project
)
"""Variables of the environment that each child gets, beside those of `spider.env`."""

CLOSE_S = 1.0
"""Time for a zygote to kill what is below it, before it is killed itself."""

_decode = msgspec.json.Decoder(ZygoteWord).decode
_encode = msgspec.json.Encoder().encode


class ZygoteProcess:
    """A running zygote.

    Args:
        path: Of its spider, for the log.
        env: Names of further variables of the environment that it gets.
        job: The job that its spider works for.

    Attributes:
        printed: What its child prints.
    """

    def __init__(self, path: str, env: Collection[str], job: str = "") -> None:
        self.printed = Printed(path, job)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        environment = {name: os.environ[name] for name in (*PASSED, *env) if name in os.environ}
        command = [sys.executable, "-P", "-m", "crawlog.agents.sandbox.zygote"]
        try:
            with theirs, self.printed.opened() as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
        except BaseException:
            self._control.close()
            self.printed.close()
            raise

    def fileno(self) -> int:
        """The socket of its orders; -1 if it is closed."""
        return self._control.fileno()

    def fork(self, limits: ChildLimits, preload: tuple[str, ...] = ()) -> socket.socket:
        """Order a child; returns the socket to it.

        Args:
            preload: Modules that the zygote imports before.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):  # a zygote that is gone shows in `words`
            socket.send_fds(self._control, [_encode(ForkOrder(limits, preload))], [theirs.fileno()])
        return ours

    def kill(self) -> None:
        """Order the end of the child, and of all that it started."""
        with contextlib.suppress(OSError):
            self._control.send(_encode(ForkOrder()))

    def words(self) -> Iterator[ZygoteWord]:
        """What it says. Raises: EOFError: it is gone."""
        while self._control.fileno() >= 0:
            try:
                told = self._control.recv(1 << 12)
            except BlockingIOError:
                return
            except OSError:
                told = b""
            if not told:
                raise EOFError("the zygote ended")
            yield _decode(told)

    def close(self) -> None:
        """End it, with its child."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        self._process.kill()
        self._process.wait()
        self.printed.close()
