"""Pages that wait in parse: their order, what of them stays in memory, and how long they wait."""

from typing import Any

import pytest

from crawlog.schemas.pages import PageMeta
from crawlog.streams.parse.ack_order import AckOrder, Page, Taken
from crawlog.streams.parse.waiting import HELD_LOOKS, Held, KeptRecord, PageLine


def record(offset: int, body: bytes = b"", **meta: Any) -> tuple[KeptRecord, PageMeta, Page]:
    """A page that was taken."""
    return (
        KeptRecord(3, offset, None, body, []),
        PageMeta("http://a.test/", **({"job": "j"} | meta)),
        Page(lambda: None),
    )


@pytest.mark.parametrize(
    ("sizes", "stay"),
    [
        ([4, 4, 2], [True, True, True]),
        ([4, 8, 4], [True, False, True]),
        ([40, 1], [True, False]),
        ([0, 40], [True, False]),
    ],
)
def test_of_bodies_in_a_line_only_so_many_bytes_stay(sizes: list[int], stay: list[bool]) -> None:
    """The first one's stays whatever its size: its turn comes next."""
    line = PageLine(most_bytes=10)
    for offset, size in enumerate(sizes):
        line.add(*record(offset), b"x" * size)
    assert [one.body is not None for one in line] == stay
    assert line.size_bytes == sum(size for size, stays in zip(sizes, stay, strict=True) if stays)
    assert [line.pop().message.offset for _ in sizes] == list(range(len(sizes)))
    assert (line.size_bytes, len(line), line.first) == (0, 0, None)


def test_a_body_that_was_let_go_is_named_by_where_it_lies() -> None:
    """In the page's own record, or, where that was not modified, in an older one, which then keeps it."""
    line = PageLine()
    line.add(*record(5), b"new")
    line.add(*record(6, same_as=(3, 1)), b"old")
    own, older = line
    assert (own.of_log.same_as, older.of_log.same_as) == ((3, 5), (3, 1))
    assert (own.whole(b"new").value, older.whole(b"old").value) == (b"new", None)


def test_held_pages_wait_for_their_own_job_only() -> None:
    """They come in the order in which they were taken, and nothing of them is counted any more."""
    held = Held()
    for offset, job in enumerate("kjk"):
        held.add(*record(offset, b"xx", job=job))
    assert (held.count, held.size_bytes) == (3, 6)
    assert [message.offset for message, _, _ in held.let_go("k")] == [0, 2]
    assert (held.count, held.size_bytes, held.let_go("k")) == (1, 2, [])


def test_held_pages_wait_for_so_many_looks() -> None:
    """Looks at another job's do not count."""
    held = Held()
    held.add(*record(0, job="early"))
    assert [held.look() for _ in range(HELD_LOOKS - 1)] == [[]] * (HELD_LOOKS - 1)
    held.add(*record(1, job="late"))
    assert held.look() == ["early"]
    held.let_go("early")
    held.add(*record(2, job="early"))
    assert held.look() == [], "it is counted anew"


def test_in_order_says_the_lowest_offset_that_is_not_done() -> None:
    """Gaps in the offsets are none."""
    order = AckOrder()
    for offset in (4, 5, 9):
        order.take(offset)
    assert [order.finish(offset) for offset in (5, 4, 9)] == [None, 6, 10]
    assert len(order) == 0


def test_what_was_taken_counts_until_all_before_it_is_done() -> None:
    """A page is done with its last output; those behind one that is not lie beyond the commit."""
    done: list[tuple[int, int]] = []
    taken = Taken(lambda *at: done.append(at))
    first, second, other = taken.take(3, 4), taken.take(3, 6), taken.take(5, 1)
    assert (taken.ends, taken.undone, taken.beyond) == ({3: 7, 5: 2}, 3, 3)
    second.one_done()
    assert (done, taken.undone, taken.beyond) == ([], 2, 3)
    other.wait()
    other.one_done()
    assert done == [], "one output is missing"
    first.one_done()
    other.one_done()
    assert (done, taken.undone, taken.beyond) == ([(3, 7), (5, 2)], 0, 0)


def test_pages_of_an_assignment_that_is_over_say_nothing() -> None:
    """Whoever has the partition now reads them again; also when that is us."""
    done: list[tuple[int, int]] = []
    taken = Taken(lambda *at: done.append(at))
    before = taken.take(3, 4)
    taken.give_up()
    assert (taken.ends, taken.undone, taken.beyond) == ({}, 0, 0)
    again = taken.take(3, 4)
    before.one_done()
    assert (done, taken.undone) == ([], 1)
    again.one_done()
    assert done == [(3, 5)]
