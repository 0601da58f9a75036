"""What an operator does to the log: commands, dead letters, replay."""

import base64
import dataclasses
import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from crawlog.commands import control, dead
from crawlog.commands.replay import Plan, ReplayOptions, is_of_fleet, replay
from crawlog.jobs.changes import refill_output
from crawlog.schemas.control import MAX_DELAY_S, Action, Command, key
from crawlog.streams.dead_letters import Letter, LetterChoice, letters_by_error
from crawlog.streams.fleet import FleetState
from crawlog.streams.groups import check_group_name

from .answers import AnswerError
from .api_jobs import SEEN_S, Limit
from .endpoint import ApiCall, ApiEndpoint

MOST_OFFSETS = 10_000  # Offsets of letters in one request

LogOffset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class CommandBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command for exactly one target: a job, a host, a stage or an exit."""

    action: Action
    job: Annotated[str, msgspec.Meta(max_length=100)] = ""
    host: Annotated[str, msgspec.Meta(max_length=300)] = ""
    stage: Literal["", "fetch", "parse", "sink"] = ""
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_S)] = 0.0
    exit: Annotated[str, msgspec.Meta(max_length=300)] = ""


class OrderAnswer(msgspec.Struct, frozen=True):
    """The command as written, and whether it changes what is in force."""

    command: Command
    changes: bool
    knows_job: bool


class DeadQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which letters.

    Attributes:
        reason: Part of the error's text.
        kind: Of the error, as `/dead/kinds` names it.
        handled: Whether redriven and dropped ones are among them.
        before: Only those before this offset; empty for all.
    """

    stage: str = ""
    job: str = ""
    reason: str = ""
    kind: str = ""
    handled: bool = False
    before: LogOffset | None = None
    limit: Limit = 100


class DeadPage(msgspec.Struct, frozen=True):
    """The newest letters, the oldest first; `total` counts all that fit, `closed` those redriven or dropped."""

    letters: list[Letter]
    total: int
    closed: int


class DeadKind(msgspec.Struct, frozen=True):
    """Open letters of one stage with the same error, but for its numbers; `newest` is the last of them."""

    kind: str
    count: int
    since: float
    jobs: list[str]
    newest: Letter


class DeadLetterView(msgspec.Struct, frozen=True):
    """A letter in full; key and value are base64."""

    letter: Letter
    key: str | None
    value: str | None
    headers: dict[str, str]
    traceback: str


class LettersBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which open letters: those that fit all that is given; without `execute` they are only looked up.

    Attributes:
        offsets: In crawl.dead.
        kind: Of the error, as `/dead/kinds` names it.
        upto: The last offset that counts, so that nothing is done about letters that came later.
    """

    offsets: Annotated[list[LogOffset], msgspec.Meta(max_length=MOST_OFFSETS)] = []
    stage: str = ""
    job: str = ""
    kind: str = ""
    upto: LogOffset | None = None
    execute: bool = False


class RedriveAnswer(msgspec.Struct, frozen=True):
    """Letters whose records go back, and those that stay with the reason; `sent` is null without `execute`."""

    going: list[Letter]
    staying: list[tuple[Letter, str]]
    sent: int | None
    messages: list[str]


class DropAnswer(msgspec.Struct, frozen=True):
    """Letters that are laid aside; only looked up without `execute`."""

    letters: list[Letter]
    done: bool


class ReplayBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `crawlog replay` takes; without `execute` it only plans.

    Attributes:
        group: `fetch`, `parse`, `sink`, or the name of a sink's group.
        value: Of the target; of `from-file` lines `topic,partition,offset`, as `crawlog replay --export` prints them.
        topics: Only these partitions: `TOPIC` or `TOPIC:0,1`.
        job: Of parse only this job's pages; of sink only its own outputs.
        output: Of the sink of a job: only this output. One of a fleet is emptied and filled again; nobody stops.
    """

    group: Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
    to: Literal["to-earliest", "to-latest", "to-offset", "shift-by", "to-datetime", "by-duration", "from-file"]
    value: (
        Annotated[str, msgspec.Meta(max_length=100_000)] | Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
    ) = ""
    topics: Annotated[tuple[str, ...], msgspec.Meta(max_length=100)] = ()
    job: Annotated[str, msgspec.Meta(max_length=100)] = ""
    output: Annotated[str, msgspec.Meta(max_length=300)] = ""
    execute: bool = False


class MoveView(msgspec.Struct, frozen=True):
    """One partition of a plan.

    Attributes:
        times_ms: Of the first and the last of the records, by the log; None if there is none.
        is_skip: Whether the records are skipped, not read again.
    """

    partition: int
    before: int | None
    after: int
    records: int
    gone: int
    times_ms: tuple[int, int] | None = None
    is_skip: bool = False


class PlanView(msgspec.Struct, frozen=True):
    """A plan of one group: records read again, skipped, and no longer in the log.

    Attributes:
        of: The output of a sink; empty for others.
    """

    group: str
    stage: str
    of: str
    topic: str
    moves: list[MoveView]
    again: int
    skipped: int
    gone: int


class ReplayAnswer(msgspec.Struct, frozen=True):
    """The plans; `live` names members of the groups, which hold an execution up.

    Attributes:
        refilled: The output of a job on a fleet that is emptied and filled again, in place of plans.
    """

    plans: list[PlanView]
    live: list[str]
    executed: bool
    messages: list[str]
    refilled: str = ""


def _orders(call: ApiCall) -> list[Command]:
    return control.listed(call.settings)


def _order(call: ApiCall) -> OrderAnswer:
    body: CommandBody = call.body
    command = control.wanted(body.action, body.job, body.host, body.stage, body.delay_s, body.exit)
    given = control.give(call.settings, command)
    call.fleet.wait_until(lambda state: _hears(state, command), SEEN_S)
    return OrderAnswer(given.command, given.changes, given.knows_job)


def _hears(state: FleetState, command: Command) -> bool:
    """Whether the live view has read a command, or a later one for its target."""
    heard = state.control.records.get(key(command))
    return isinstance(heard, Command) and heard.at >= command.at


def _letters(call: ApiCall) -> DeadPage:
    query: DeadQuery = call.query
    choice = LetterChoice(query.stage, query.job, query.reason, kind=query.kind)
    known = call.fleet.letters.all()
    found = [one for one in known if (query.handled or not one.handled) and choice.takes(one)]
    shown = [one for one in found if query.before is None or one.offset < query.before][-query.limit :]
    return DeadPage(shown, len(found), sum(bool(one.handled) for one in known))


def _kinds(call: ApiCall) -> list[DeadKind]:
    return letter_kinds(one for one in call.fleet.letters.all() if not one.handled)


def letter_kinds(letters: Iterable[Letter]) -> list[DeadKind]:
    """The kinds of letters, the commonest first."""
    return [
        DeadKind(group[-1].kind, len(group), group[0].at, sorted({one.job for one in group}), group[-1])
        for group in letters_by_error(letters)
    ]


def opened_letter(call: ApiCall) -> dead.Opened:
    """The letter that the path names, with as much of its record as the user may see."""
    letter = _named_letter(call)
    return dead.opened(call.settings, letter, call.settings.body_room, to_reader=call.role == "read")


def _named_letter(call: ApiCall) -> Letter:
    text = call.path["offset"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise AnswerError(404, "a dead letter is named by its offset in crawl.dead")
    letter = next((one for one in call.fleet.letters.all() if one.offset == int(text)), None)
    if letter is None:
        raise AnswerError(404, f"there is no dead letter at offset {text}")
    return letter


def _letter(call: ApiCall) -> DeadLetterView:
    found = opened_letter(call)
    return DeadLetterView(found.letter, _encoded(found.key), _encoded(found.value), found.headers, found.traceback)


def _encoded(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _choice(call: ApiCall) -> LetterChoice:
    body: LettersBody = call.body
    if not (body.offsets or body.kind or body.job or body.stage):
        raise AnswerError(400, "no dead letter is chosen\nGive offsets, a kind, a job or a stage.")
    return LetterChoice(body.stage, body.job, "", frozenset(body.offsets), upto=body.upto, kind=body.kind)


def _redrive(call: ApiCall) -> RedriveAnswer:
    messages: list[str] = []
    found = dead.redriven(call.settings, _choice(call), execute=call.body.execute, report=messages.append)
    staying = [(one, why) for group, why in found.staying for one in group]
    return RedriveAnswer([one for group in found.going for one in group], staying, found.sent, messages)


def _drop(call: ApiCall) -> DropAnswer:
    found = dead.dropped(call.settings, _choice(call), execute=call.body.execute)
    return DropAnswer(found.letters, found.done)


def replay_of(call: ApiCall) -> ReplayAnswer:
    """What the body of a call asks for: a plan, or one that is carried out."""
    body: ReplayBody = call.body
    messages: list[str] = []
    check_group_name(call.settings, body.group)
    options = _options(body)
    if body.output and is_of_fleet(call.settings, options):
        if body.execute:
            refill_output(call.settings, body.job, body.output, call.user)
        return ReplayAnswer([], [], body.execute, messages, body.output)
    planned = replay(call.settings, options, messages.append)
    if body.execute:
        if planned.live:
            raise AnswerError(
                409,
                f"the group is live ({'; '.join(planned.live)}), so it cannot be moved\nStop its workers, then replay.",
            )
        planned = replay(call.settings, dataclasses.replace(options, execute=True), messages.append)
    return ReplayAnswer([_plan(one) for one in planned.plans], planned.live, body.execute, messages)


def _options(body: ReplayBody) -> ReplayOptions:
    value, content = body.value, ""
    if body.to in ("to-offset", "shift-by"):
        if not re.fullmatch(r"-?[0-9]{1,18}", str(value)):
            raise AnswerError(400, f"{body.to} takes a whole number as its value")
        value = int(value)
    elif body.to == "from-file":
        value, content = "", str(value)
        if not content.strip():  # it would name a file of this machine
            raise AnswerError(400, "from-file takes lines topic,partition,offset as its value")
    return ReplayOptions(body.group, body.to, value, body.topics, job=body.job, output=body.output, content=content)


def _plan(plan: Plan) -> PlanView:
    moves = [
        MoveView(
            one.partition, one.before, one.after, one.records, one.gone, plan.times_ms.get(one.partition), one.is_skip
        )
        for one in plan.moves
    ]
    group = plan.group
    return PlanView(group.name, group.stage, group.of, group.topic, moves, plan.again, plan.skipped, plan.gone)


ENDPOINTS = (
    ApiEndpoint("GET", "/control", "read", "Commands in force", list[Command], _orders),
    ApiEndpoint("POST", "/control", "operate", "Give a command", OrderAnswer, _order, body=CommandBody),
    ApiEndpoint("GET", "/dead", "read", "List dead letters", DeadPage, _letters, query=DeadQuery),
    ApiEndpoint("GET", "/dead/kinds", "read", "Kinds of errors of open dead letters", list[DeadKind], _kinds),
    ApiEndpoint("GET", "/dead/{offset}", "read", "A dead letter in full", DeadLetterView, _letter),
    ApiEndpoint("POST", "/dead/redrive", "operate", "Send records back", RedriveAnswer, _redrive, body=LettersBody),
    ApiEndpoint("POST", "/dead/drop", "operate", "Lay dead letters aside", DropAnswer, _drop, body=LettersBody),
    ApiEndpoint(
        "POST",
        "/replay",
        "operate",
        "Plan a replay, or run it",
        ReplayAnswer,
        replay_of,
        body=ReplayBody,
        errors=(409,),
    ),
)
