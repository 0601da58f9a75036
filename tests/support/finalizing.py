"""A signal that comes at a bad moment: Python drops what its handler raises in a finalizer."""

import os


class _Finalized:
    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self._number)


def signal_in_a_finalizer(number: int) -> None:
    """This process gets the signal while a finalizer runs; pytest warns of what is dropped there."""
    _Finalized(number)
