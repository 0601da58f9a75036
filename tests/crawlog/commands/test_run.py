"""What a run counts of its job, and when."""

from types import SimpleNamespace
from typing import Any

from crawlog.commands.run import Run
from crawlog.commands.summary import Summary


def a_run(amended: list[int]) -> Any:
    """A run whose job has ended with one dead letter; `amended` gets the numbers that the end is recorded with."""
    run = object.__new__(Run)
    run.summary = Summary("shop", dead=1)
    run._amended = "the end"  # type: ignore[assignment]  # passed on alone
    run.job = SimpleNamespace(amend_end=lambda _, dead: amended.append(dead))  # type: ignore[assignment]  # as above
    run.file = SimpleNamespace()  # type: ignore[assignment]  # as above
    return run


def gains_of(dead: int) -> Any:
    """Gains with so many dead letters at the end of crawl.dead."""
    return SimpleNamespace(dead=dead, commonest=("KeyError", dead), count_losses=lambda _: None)


def test_dead_letters_of_the_last_items_are_counted_when_the_file_is_made() -> None:
    """They go through their pipelines only then: a job with such an error is not one without."""
    amended: list[int] = []
    run = a_run(amended)
    run._count_late_losses(gains_of(1))
    assert (run.summary.dead, amended) == (1, [])
    run._count_late_losses(gains_of(3))
    assert (run.summary.dead, run.summary.commonest_error, amended) == (3, "KeyError", [3])


def test_a_run_without_a_file_has_no_such_items() -> None:
    """Nothing is read again."""
    run = a_run([])
    run.file = None
    run._count_late_losses(gains_of(3))
    assert run.summary.dead == 1
