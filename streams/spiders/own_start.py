"""The outputs of `start` and of callbacks, one by one: given at once, by a generator, or later by an async one."""

import asyncio  # noqa: TID251  # for its error: in the child alone, whose loop an async `start` waits for
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Iterable, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final

from .spider_request import Request

PAUSE: Final = object()
"""Given before an async `start` waits: what it gave before need not wait with it."""


async def each_output(given: Any) -> AsyncIterator[object]:
    """The outputs that a callback returned, one by one: nothing, one, several, now or later."""
    if isawaitable(given):
        given = await given
    if not hasattr(given, "__aiter__"):
        for output in several(given):
            yield output
        return
    async for output in given:
        yield output


async def each_start(given: Any) -> AsyncGenerator[object, None]:
    """The same, with `PAUSE` between them. When it is closed, it closes an async `start` too, so its `finally` runs."""
    iterator = given.__aiter__() if hasattr(given, "__aiter__") else each_output(given)
    try:
        while True:
            stepping = iterator.__anext__().__await__()
            try:
                waits_for = next(stepping)
            except StopIteration as done:
                yield done.value
                continue
            rest = _Rest(waits_for, stepping)
            try:
                yield PAUSE
            except GeneratorExit:
                await rest.cancelled()
                raise
            yield await rest
    except StopAsyncIteration:
        return
    finally:
        if hasattr(iterator, "aclose"):
            await iterator.aclose()


class _Rest(Awaitable[Any]):
    """The rest of an awaitable that was begun: what it waits for first is passed on to the event loop."""

    def __init__(self, waits_for: Any, stepping: Generator[Any, Any, Any]) -> None:
        self._waits_for = waits_for
        self._stepping = stepping

    async def cancelled(self) -> None:
        """Ends it as a task that is cancelled: a generator that still waits cannot be closed."""
        with suppress(asyncio.CancelledError, StopIteration, StopAsyncIteration):
            self._waits_for = self._stepping.throw(asyncio.CancelledError())
            await self

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            try:
                try:
                    answer = yield waits_for
                except BaseException as error:  # noqa: BLE001  # a cancellation among them: it is the generator's
                    waits_for = self._stepping.throw(error)
                else:
                    waits_for = self._stepping.send(answer)
            except StopIteration as done:
                return done.value


def several(given: Any) -> Iterable[object]:
    """What a callback returned, as several outputs."""
    if given is None:
        return ()
    is_single = isinstance(given, Mapping | Request) or not isinstance(given, Iterable)
    return (given,) if is_single else given
