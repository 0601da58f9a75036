"""Calls at the ends of jobs (`--on-finish`): which are due, when, and with what. Pure.

    the end of a job's revision, its outputs complete ─► HookCall ─► taken: HookNote, no further call
                                                             ▲                │
                                                             └─ AGAIN_S later ┴ failed: HookNote, `next_at`

A call is of one end: job, epoch, revision. It comes at least once: a kill behind the call and before its note repeats
it. A job that goes on before its call was taken has no such end any more; the next one has a call again.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from crawlog.schemas.control import HookNote, JobCopy
from crawlog.schemas.job_orders import NO_FLOW
from crawlog.streams.jobs import ControlState

AGAIN_S = 2.0  # Pause after the first failure, seconds; it doubles with each further one

MOST_AGAIN_S = 3_600.0

MOST_CALLS = 32  # Calls of one end, over a day with these pauses; then it is given up

COUNTS = ("fetched", "redirected", "failed", "refused")  # Of URLs, by what became of them

MOST_ERROR = 500  # Characters of an error in a note


class HookCall(NamedTuple):
    """A call that is due.

    Attributes:
        copy: The job's record; with its epoch and revision it names the end.
        target: URL, or name of a target that the workers' settings declare.
        tries: Calls before this one.
        at: UTC epoch seconds, not earlier.
        body: JSON.
    """

    copy: JobCopy
    target: str
    tries: int
    at: float
    body: bytes

    @property
    def id(self) -> str:
        """Identifies the end: a receiver that gets it twice may drop the second one."""
        return f"{self.copy.job}/{self.copy.epoch}/{self.copy.spec.rev}"

    def note(self, error: str, now: float) -> HookNote:
        """What became of it; empty if it was taken."""
        tries = self.tries + 1
        again_s = min(AGAIN_S * 2.0**self.tries, MOST_AGAIN_S)
        return HookNote(
            self.copy.job,
            self.target,
            now,
            self.copy.epoch,
            self.copy.spec.rev,
            tries,
            now + again_s if error and tries < MOST_CALLS else 0.0,
            " ".join(error.split())[:MOST_ERROR],
        )


def hook_calls(control: ControlState, job: str, targets: Iterable[str] | None = None) -> list[HookCall]:
    """The calls of a job that are not over.

    Args:
        targets: Of a `run`, whose record names none; None for those of the job's record.
    """
    copy = control.job(job)
    if copy is None:
        return []
    wanted = (copy.spec.flow or NO_FLOW).on_finish if targets is None else targets
    body = b""
    calls = []
    for target in wanted:
        note = control.hook(job, target)
        if note is None or (note.epoch, note.rev) != (copy.epoch, copy.spec.rev):
            note = None
        elif not note.next_at:
            continue
        body = body or _body(control, copy)
        if not body:
            return []
        calls.append(HookCall(copy, target, note.tries if note else 0, note.next_at if note else 0.0, body))
    return calls


def _body(control: ControlState, copy: JobCopy) -> bytes:
    """The end of a job as its receivers get it; empty before that."""
    end, spec = control.complete_end(copy.job), copy.spec
    if end is None:
        return b""
    outputs = [(one, control.output(copy.job, one.name)) for one in spec.outputs]
    return msgspec.json.encode(
        {
            "job": copy.job,
            "epoch": copy.epoch,
            "revision": spec.rev,
            "state": spec.state if spec.state != "running" else end.reason,
            "reason": spec.reason,
            "submitted_at": spec.at,
            "ended_at": end.at,
            "by": spec.by,
            "dead": end.dead,
            "counts": {name: getattr(end.counts, name, 0) for name in COUNTS},
            "outputs": [
                {"name": one.name, "state": note.became, "rows": note.rows, "error": note.error}
                for one, note in outputs
                if note is not None
            ],
        }
    )


def signature(secret: str, body: bytes) -> str:
    """Value of the header `X-Crawlog-Signature`."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"
