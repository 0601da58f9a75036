"""Room in memory for bodies: never more than there is, first come, first served, and nobody waits for ever."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.agents.client.body import BodyBudget
from crawlog.streams.http.answer import HeldBytes

SIZE = 10


async def turns() -> None:
    """Let everybody go on who can."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("wanted", "got_in"),
    [
        ([4, 6], [True, True]),
        ([4, 7], [True, False]),
        ([4, 7, 1], [True, False, False]),
        ([11, 1], [True, False]),
        ([0, 10, 0], [True, True, True]),
    ],
    ids=["just fits", "too much", "no overtaking", "more than all is all", "nothing is always there"],
)
async def test_who_gets_in(wanted: Sequence[int], got_in: Sequence[bool]) -> None:
    """In the order of coming."""
    budget = BodyBudget(SIZE)
    tasks = [asyncio.create_task(budget.take(size)) for size in wanted]
    await turns()
    assert [task.done() for task in tasks] == got_in
    for task in tasks:
        task.cancel()


async def test_room_is_given_back_once() -> None:
    """A part that is not needed goes back before the rest; what goes back twice would be lent twice."""
    budget = BodyBudget(SIZE)
    held = await budget.take(8)
    held.cut(9)
    assert budget.free_bytes == 2
    held.cut(3)
    assert budget.free_bytes == 7
    held.give()
    held.give()
    assert budget.free_bytes == SIZE
    HeldBytes().give()


async def test_what_is_here_already_counts_without_waiting() -> None:
    """Others wait until it has gone, and nobody for it."""
    budget = BodyBudget(SIZE)
    first = await budget.take(4)
    here = budget.count(9)
    later = asyncio.create_task(budget.take(2))
    await turns()
    first.give()
    await turns()
    assert (budget.free_bytes, later.done()) == (1, False)
    here.give()
    await turns()
    assert (budget.free_bytes, later.done()) == (SIZE - 2, True)


async def test_who_no_longer_waits_is_not_waited_for() -> None:
    """Neither at the head of the line nor at the moment when its turn has come."""
    budget = BodyBudget(SIZE)
    held = await budget.take(SIZE)
    large, small = (asyncio.create_task(budget.take(size)) for size in (SIZE, 1))
    await turns()
    held.cut(5)
    large.cancel()
    await turns()
    assert small.done()
    last = asyncio.create_task(budget.take(9))
    await turns()
    held.give()
    small.result().give()  # it is the last one's turn
    last.cancel()
    await turns()
    assert (budget.free_bytes, budget.waiting) == (SIZE, 0)


@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25), st.integers(0, 3)), max_size=30))
def test_however_they_come_and_go_nothing_is_lost_or_lent_twice(life: list[tuple[int, int, int]]) -> None:
    """Each wants some, cuts it down, and may give up before: at every moment what is lent and what is free is all."""
    asyncio.run(_come_and_go(life))


async def _come_and_go(life: list[tuple[int, int, int]]) -> None:
    budget = BodyBudget(SIZE)
    lent: set[HeldBytes] = set()

    async def live(wanted: int, kept: int, rests: int) -> None:
        held = await budget.take(wanted)
        lent.add(held)
        try:
            check()
            await asyncio.sleep(0)
            held.cut(kept)
            for _ in range(rests):
                check()
                await asyncio.sleep(0)
        finally:
            lent.discard(held)
            held.give()

    def check() -> None:
        assert 0 <= budget.free_bytes <= SIZE - sum(held.size_bytes for held in lent)

    tasks = []
    for number, one in enumerate(life):
        tasks.append(asyncio.create_task(live(*one)))
        await asyncio.sleep(0)
        if one[2] == 0 and number % 2:
            tasks[number // 2].cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert [error for task in tasks if not task.cancelled() and (error := task.exception())] == []
    assert (budget.free_bytes, budget.waiting) == (SIZE, 0)
