"""`crawlog run` where a fleet runs: gives it the job, and follows."""

import time
from typing import Any


def attached(given: dict[str, Any], output: str | None, *, as_json: bool) -> int:
    """Gives the job of a `run` to the fleet, and follows it.

    Args:
        given: The values of the options of `run`.
    """
    from . import arguments
    from .followed import followed
    from .jobs import submitted

    began = time.time()
    if output is not None:
        arguments.result_output(output)
    of_submit = {"project": "", "version": "", "outputs": (), "priority": 0, "paused": False}
    settings, view, before = submitted(given | of_submit, is_followed=True, is_run=True)
    return followed(settings, view, before, as_json=as_json, output=output, began=began)
