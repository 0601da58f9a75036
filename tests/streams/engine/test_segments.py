"""The files of a partition, read without a broker: what is damage in them, and what can be read behind it."""

import os
import struct
from collections.abc import Callable
from itertools import count
from pathlib import Path

import psutil
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder, _DefaultRecordBatchBuilderPy

from crawlog.streams import files
from crawlog.streams.engine.broker import Identity
from crawlog.streams.engine.changed_files import before_start, note_files, recheck
from crawlog.streams.engine.engine import Engine
from crawlog.streams.engine.segments import CutOff, damaged
from tests.support.any_records import RawName

RECORDS = 5
"""Records of a batch."""

VALUE = b'{"v":1,"job":"j","urls":[{"url":"http://a.com/"}]}'


def batch(offset: int, epoch: int = 0) -> bytes:
    """A batch of a few founds."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for number in range(RECORDS):
        builder.append(number, 1000, b"a.com", VALUE, [])
    made = bytearray(builder.build())
    struct.pack_into(">q", made, 0, offset)
    struct.pack_into(">i", made, 12, epoch)
    return bytes(made)


BATCHES = [batch(offset) for offset in range(0, 20, RECORDS)]
SIZE = len(BATCHES[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a partition."""
    made = tmp_path / "crawl.urls-3"
    made.mkdir()
    return made


def put(folder: Path, *contents: bytes, offset: int = 0) -> None:
    """A file of the partition."""
    (folder / f"{offset:020}.log").write_bytes(b"".join(contents))


def cut_of(folder: Path) -> CutOff:
    """The cut before the first damage."""
    found = damaged(folder)
    assert found is not None
    assert [one.offset for one in found.lost] == sorted({one.offset for one in found.lost})
    return found.cut


def test_zeros_behind_the_last_record_are_no_damage(folder: Path) -> None:
    """Few or many, and where an earlier file ends with a record."""
    put(folder, *BATCHES[:2])
    for zeros in (0, 3, 4096):
        put(folder, *BATCHES[2:], bytes(zeros), offset=10)
        assert damaged(folder) is None


@pytest.mark.parametrize(
    ("start", "end", "readable"),
    [(SIZE, 2 * SIZE, 10), (SIZE, 2 * SIZE + 9, 5), (SIZE + 30, 2 * SIZE, 10), (SIZE + 30, 2 * SIZE + 30, 5)],
    ids=["a batch", "a batch and the next offset", "a batch without its head", "from batch to batch"],
)
def test_zeros_amid_a_file_are_damage_and_records_behind_them_are_read(
    folder: Path, start: int, end: int, readable: int
) -> None:
    """Wherever they begin and end."""
    content = b"".join(BATCHES)
    put(folder, content[:start], bytes(end - start), content[end:])
    assert cut_of(folder) == CutOff("crawl.urls", 3, 5, 20, 3 * SIZE, readable)


def test_the_batch_behind_zeros_is_found_at_its_first_byte(folder: Path) -> None:
    """A byte before it a head seems to begin too: the epoch of the leader is in the place of the version."""
    put(folder, bytes(SIZE), batch(600, epoch=2))
    assert cut_of(folder) == CutOff("crawl.urls", 3, 0, 605, 2 * SIZE, RECORDS)


def test_zeros_at_the_end_of_a_file_that_others_follow_are_damage(folder: Path) -> None:
    """The partition is cut there; the records of the later file are read."""
    put(folder, BATCHES[0], bytes(4096))
    put(folder, *BATCHES[2:], offset=10)
    assert cut_of(folder) == CutOff("crawl.urls", 3, 5, 20, 4096 + 2 * SIZE, 2 * RECORDS)


def test_a_headers_name_of_any_bytes_is_no_damage(folder: Path) -> None:
    """Kafka takes it; a repair would have cut the log there."""
    builder = _DefaultRecordBatchBuilderPy(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1000, None, VALUE, [(RawName(b"\xff"), None)])
    odd = bytes(builder.build())
    put(folder, odd)
    assert damaged(folder) is None
    put(folder, bytes(len(odd)), struct.pack(">q", 1) + odd[8:])
    assert cut_of(folder).readable == 1


@pytest.mark.parametrize("name", ["crawl.urls-3.0a1b2c3d-delete", "crawl.urls-3.0a1b2c3d-future", "lost+found"])
def test_folders_that_are_no_partition_are_left_out(folder: Path, name: str) -> None:
    """Kafka deletes a topic's folders some time after it has renamed them."""
    put(folder, bytes(SIZE), BATCHES[1])
    assert damaged(folder) is not None
    assert damaged(folder.rename(folder.with_name(name))) is None


def test_the_founds_of_every_cut_are_offered(tmp_path: Path) -> None:
    """Two cuts, in one second as a rule, before a run offers them; afterwards nothing is left to offer."""
    (tmp_path / "kafka").mkdir(mode=0o700)
    for number in range(2):
        folder = tmp_path / "kafka" / "log" / f"crawl.urls-{number}"
        folder.mkdir(parents=True)
        put(folder, bytes(SIZE), BATCHES[1])
        assert f"crawl.urls[{number}] is cut at offset 0" in recheck(tmp_path)[0]
    engine = Engine(tmp_path, Identity("id", 1, 2), psutil.Process(), "")
    assert len(set(engine.cut_off)) == 2
    assert [partition for _, partition, _ in engine.founds_cut_off()] == [0] * RECORDS + [1] * RECORDS
    engine.cut_off[0].unlink()
    assert [partition for _, partition, _ in engine.founds_cut_off()] == [1] * RECORDS
    engine.offered()
    assert engine.cut_off == []


def test_the_next_start_does_not_tell_of_what_a_repair_has_cut(tmp_path: Path) -> None:
    """It said that somebody had changed the files."""
    kafka, folder = tmp_path / "kafka", tmp_path / "kafka" / "log" / "crawl.urls-0"
    folder.mkdir(parents=True)
    kafka.chmod(0o700)
    put(folder, bytes(SIZE), BATCHES[1])
    note_files(kafka)
    assert recheck(tmp_path)
    told: list[str] = []
    before_start(tmp_path, kafka, told.append, checks=True)
    assert told == []


def test_a_folder_whose_broker_never_ran_has_nothing_to_cut(tmp_path: Path) -> None:
    """The first start ended before Kafka's files were made."""
    assert recheck(tmp_path) == []


class Died(Exception):
    """Stands for a kill."""


def recheck_dies(data: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Recheck a folder until it has changed `step` files; False if it changes no more than these."""
    left = iter(range(step))

    def dying(act: Callable[..., object]) -> Callable[..., object]:
        def done(*given: object, **named: object) -> object:
            if next(left, None) is None:
                raise Died
            return act(*given, **named)

        return done

    with monkeypatch.context() as patched:
        for owner, name in ((os, "truncate"), (Path, "unlink"), (files, "write")):
            patched.setattr(owner, name, dying(getattr(owner, name)))
        try:
            recheck(data)
        except Died:
            return True
    return False


def test_a_kill_at_any_step_of_a_cut_loses_no_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again finds the damage, or the note of what is to be offered."""
    for step in count():
        data = tmp_path / str(step)
        partitions = [data / "kafka" / "log" / f"crawl.urls-{number}" for number in range(2)]
        for folder in partitions:
            folder.mkdir(parents=True)
            put(folder, BATCHES[0], bytes(SIZE), BATCHES[2])
            put(folder, BATCHES[3], offset=15)
        has_died = recheck_dies(data, step, monkeypatch)
        recheck(data)
        engine = Engine(data, Identity("id", 1, 2), psutil.Process(), "")
        offered = [partition for _, partition, _ in engine.founds_cut_off()]
        assert min(offered.count(number) for number in range(2)) >= 2 * RECORDS, step
        assert [[file.stat().st_size for file in folder.iterdir()] for folder in partitions] == [[SIZE]] * 2, step
        if not has_died:
            return
