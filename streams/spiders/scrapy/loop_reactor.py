"""A reactor of Twisted on the child's asyncio loop, for projects that import one; without one there is none.

`from twisted.internet import reactor` would install another kind of reactor, which nothing here runs.
"""

import asyncio
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "twisted.internet.reactor"


class ReactorOnDemand(Loader):
    """Finds the module that Twisted's reactor is, by installing it."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  # Python's own signature
        """The reactor's spec; None leaves other modules to the next finders."""
        return ModuleSpec(NAME, self) if name == NAME else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002  # Python's own signature
        """The reactor, installed on the loop of this process."""
        from twisted.internet import asyncioreactor

        loop = asyncio.get_event_loop()
        asyncioreactor.install(loop)  # type: ignore[no-untyped-call]  # Twisted's
        if loop.is_running():
            start_if_installed()
        return sys.modules[NAME]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it is an object already."""


def install_on_demand() -> None:
    """From now on, the first import of a reactor installs the one of this loop."""
    if not any(isinstance(one, ReactorOnDemand) for one in sys.meta_path):
        sys.meta_path.insert(0, ReactorOnDemand())


def start_if_installed() -> None:
    """Let a reactor that was imported begin: threads and timers of it work from now on. The loop runs already."""
    reactor: Any = sys.modules.get(NAME)
    if reactor is not None and not reactor.running:
        reactor.startRunning(installSignalHandlers=False)
