"""Answers of a broker as aiokafka's consumer unpacks them, where a header's name is not UTF-8."""

import pytest
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.structs import TopicPartition

from crawlog.streams.batches import take_any_names
from tests.support.any_records import RawName

TP = TopicPartition("crawl.pages", 0)
ODD = 7
"""Offset of the record whose header's name is not UTF-8."""


def answer(codec: int, start: int) -> bytes:
    """Batches of four records up to offset 11, from the one that has an offset."""
    made = b""
    for first in range(start - start % 4, 12, 4):
        builder = _DefaultRecordBatchBuilderPy(2, codec, False, -1, -1, -1, 1 << 20)
        for number in range(4):
            name = RawName(b"\xff\xfe") if first + number == ODD else "crawlog"
            builder.append(number, 1000, None, str(first + number).encode(), [("n", None), (name, b"x")])
        batch = bytearray(builder.build())
        batch[:8] = first.to_bytes(8, "big")
        made += batch
    return made


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed in aiokafka is put back behind the test."""
    for name in ("MemoryRecords", "PartitionRecords"):
        monkeypatch.setattr(fetcher, name, getattr(fetcher, name))


@pytest.mark.usefixtures("unpatched")
@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "gzip"])
@pytest.mark.parametrize("first", [0, 2, 6, 7, 8])
def test_a_name_that_is_not_utf_8_loses_and_doubles_no_record(codec: int, first: int) -> None:
    """Wherever in the answer reading begins: it was an exception at each try, and so the end of every worker."""
    take_any_names()
    records = fetcher.MemoryRecords(answer(codec, first))
    found = list(fetcher.PartitionRecords(TP, records, None, first, None, None, True, 0))
    assert [(one.offset, one.value) for one in found] == [(at, str(at).encode()) for at in range(first, 12)]
    names = {one.offset: one.headers for one in found}
    assert names[8] == (("n", None), ("crawlog", b"x"))
    assert names.get(ODD, (("n", None), ("\ufffd\ufffd", b"x"))) == (("n", None), ("\ufffd\ufffd", b"x"))
