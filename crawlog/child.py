"""A worker process of the supervisor: `python -m crawlog.child STAGE PARENT`.

It dies with its supervisor, loads what it will need, and then waits at a gate, its standard input, until the supervisor
says where the log is. So its second of imports passes while the engine starts.
"""

import ctypes
import gc
import json
import os
import signal
import sys
from importlib import import_module

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Lets the kernel kill this process when its supervisor ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(0)


def main() -> None:
    """Waits at the gate, then works until it is told to stop."""
    stage, parent = sys.argv[1], int(sys.argv[2])
    die_with(parent)
    gc.disable()  # imports leave next to no cycles, and looking for them is a seventh of their time
    sys.modules["rich"] = None  # type: ignore[assignment]  # hidden: structlog would load it, unused
    import structlog  # noqa: F401  # half of its time would be rich's

    del sys.modules["rich"]  # a spider may want it
    from .streams.app import AGENTS, worker

    for module in ("crawlog.streams.worker", "uvloop", *AGENTS[stage]):
        import_module(module)
    told = sys.stdin.buffer.readline()
    if not told:
        return
    os.environ.update(json.loads(told))
    worker(stage)  # type: ignore[arg-type]  # the supervisor names stages


if __name__ == "__main__":
    main()
