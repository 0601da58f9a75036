"""Following a job of a fleet: what signals do."""

import os
import signal

import pytest

from crawlog.commands import attached_run
from tests.support.finalizing import signal_in_a_finalizer


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_came_in_a_finalizer_detaches_at_the_next_look() -> None:
    """Python drops what a finalizer raises: the command would follow the job to its end, whatever comes then."""
    signals = attached_run._Signals()
    with signals.heard():
        signals.look()
        signal_in_a_finalizer(signal.SIGTERM)
        with pytest.raises(attached_run.Detach) as detach:
            signals.look()
        assert detach.value.number == signal.SIGTERM
        assert not signals.is_again
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.is_again
