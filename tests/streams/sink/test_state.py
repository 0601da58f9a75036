"""A sink's state and file: whatever happens on the way, the file is the newest rows of each URL."""

import csv
import errno
import fcntl
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import WriteBatch

from crawlog.schemas import items
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import Misconfigured, RetryLater, Unusable
from crawlog.streams.sink import made as made_module
from crawlog.streams.sink import registry
from crawlog.streams.sink import state_folder as results
from crawlog.streams.sink.batch import Entry, SinkMeta, entry
from crawlog.streams.sink.finish import finalise, is_complete
from crawlog.streams.sink.private import PrivateOutputs
from crawlog.streams.sink.registry import sink_of
from crawlog.streams.sink.state import SinkState
from crawlog.streams.sink.state_folder import meta_of
from crawlog.streams.sink_groups import SinkSpec, known_sinks, read_again

LOG = LogIdentity("cluster", "topic")


def value(url: str, page: tuple[int, int], *rows: object, job: str = "j", epoch: int = 0) -> bytes:
    """A record of crawl.items."""
    raws = [msgspec.Raw(msgspec.json.encode(row)) for row in rows]
    return items.encode(ItemsRecord(job, url, page, raws, epoch))


def found(url: str, page: tuple[int, int], *rows: object) -> Entry:
    """The same, as a sink keeps it."""
    kept = entry(value(url, page, *rows), SinkSpec("j", "-"))
    assert kept is not None
    return kept


def raw_found(url: str, *rows: object) -> Entry:
    """Items as scraped, as a sink with pipelines keeps them."""
    record = ItemsRecord("j", url, (0, 0), [msgspec.Raw(msgspec.json.encode(row)) for row in rows], raw=True)
    kept = entry(items.encode(record), SinkSpec("j", "-"), raw=True)
    assert kept is not None
    return kept


@pytest.fixture
def sink(tmp_path: Path) -> SinkSpec:
    """A sink of JSON lines."""
    return sink_of("j", str(tmp_path / "out.jsonl"))


def fold(data: Path, sink: SinkSpec, *records: tuple[int, int, Entry | None], log: LogIdentity = LOG) -> SinkMeta:
    """Fold records in one opening; returns where the state then is."""
    with SinkState(data, sink, log) as state:
        state.fold(records)
        return state.meta


def made(data: Path, sink: SinkSpec) -> list[Any]:
    """The rows of the file that is made."""
    finalise(data, sink, {}, io.BytesIO())
    return [json.loads(line) for line in Path(sink.output).read_text().splitlines()]


# What a record means


def test_records_of_other_jobs_and_epochs_are_skipped() -> None:
    """A sink is one job's, from one epoch on."""
    assert entry(value("u", (0, 0), {}, job="other"), SinkSpec("j", "-")) is None
    assert entry(value("u", (0, 0), {}), SinkSpec("j", "-", epoch=1)) is None
    assert entry(value("u", (0, 0), {}, epoch=2), SinkSpec("j", "-", epoch=1)) is not None


@pytest.mark.parametrize(("is_store", "rows"), [(True, 0), (False, 1)])
def test_a_store_gets_no_row_of_a_page_that_is_gone(is_store: bool, rows: int) -> None:
    """What it had is treated as `results.on_gone` says; a file has the row with its status 404."""
    record = items.ItemsRecord("j", "u", (0, 0), [msgspec.Raw(b'{"status":404}')], change="gone")
    kept = entry(items.encode(record), SinkSpec("j", "x", is_store=is_store))
    assert kept is not None
    assert kept.rows == rows


def test_rows_are_lines_whatever_blanks_their_json_has() -> None:
    """An item is copied without being decoded, but never over two lines."""
    items = '[{"a":\n 1},{"b":"x\\ny"},{"c":"\x85\u2028\u2029"}]'
    record = f'{{"v":1,"job":"j","url":"u","page":[0,0],"items":{items}}}'.encode()
    kept = entry(record, SinkSpec("j", "-"))
    assert kept is not None
    rows = [json.loads(line) for line in kept.block.decode().splitlines()]
    assert rows == [{"a": 1}, {"b": "x\ny"}, {"c": "\x85\u2028\u2029"}]


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"garbage",
        b'{"v":9,"job":"j","url":"u","page":[0,0],"items":[]}',
        b'{"v":1,"job":"j","url":"u","page":[0,0],"items":[1]}',
        b'{"v":1,"job":"j","url":"u","page":[-1,0],"items":[]}',
        b'{"v":1,"job":"j","url":"u","page":[0,99999999999999999999],"items":[]}',
    ],
)
def test_what_is_no_item_record_is_a_value_error(record: bytes) -> None:
    """The agent makes a dead letter of it."""
    with pytest.raises(ValueError, match=r"\w"):
        entry(record, SinkSpec("j", "-"))


# The fold


def test_the_newest_page_of_a_url_wins(tmp_path: Path, sink: SinkSpec) -> None:
    """By the page's offset, not by the order of arrival."""
    fold(tmp_path, sink, (0, 0, found("u", (3, 8), {"n": 8})), (0, 1, found("u", (3, 7), {"n": 7})))
    assert made(tmp_path, sink) == [{"n": 8}]


def test_a_page_parsed_again_replaces_its_rows(tmp_path: Path, sink: SinkSpec) -> None:
    """The same page with other items: a newer spider wins."""
    fold(tmp_path, sink, (0, 0, found("u", (3, 8), {"n": 1}, {"n": 2})), (0, 1, found("u", (3, 8), {"n": 3})))
    assert made(tmp_path, sink) == [{"n": 3}]


def test_the_same_items_again_cost_no_bytes(tmp_path: Path, sink: SinkSpec) -> None:
    """A page that parse repeats after a kill, or that was fetched again unchanged."""
    first = fold(tmp_path, sink, (0, 0, found("u", (3, 8), {"n": 1})))
    again = fold(tmp_path, sink, (0, 1, found("u", (3, 8), {"n": 1})), (0, 2, found("u", (3, 9), {"n": 1})))
    assert (again.length, again.live, again.rows) == (first.length, first.live, 1)
    fold(tmp_path, sink, (0, 3, found("u", (3, 8), {"n": 2})))
    assert made(tmp_path, sink) == [{"n": 1}]


def test_two_requests_of_one_url_have_rows_of_their_own(tmp_path: Path, sink: SinkSpec) -> None:
    """Two POSTs to one URL: neither replaces the other."""
    records = [ItemsRecord("j", "u", (3, n), [msgspec.Raw(b'{"n":%d}' % n)], id=n % 3) for n in range(5)]
    fold(tmp_path, sink, *((0, n, entry(items.encode(record), sink)) for n, record in enumerate(records)))
    assert made(tmp_path, sink) == [{"n": 2}, {"n": 3}, {"n": 4}]


def test_a_page_without_items_takes_the_rows_away(tmp_path: Path, sink: SinkSpec) -> None:
    """It had some before; the newest page has none."""
    fold(tmp_path, sink, (0, 0, found("u", (3, 8), {"n": 1})), (0, 1, found("w", (3, 9))), (0, 2, found("u", (3, 10))))
    assert made(tmp_path, sink) == []


def test_a_record_read_twice_counts_once(tmp_path: Path, sink: SinkSpec) -> None:
    """What is below the state's offset was folded."""
    record = (0, 5, found("u", (3, 8), {"n": 1}))
    first = fold(tmp_path, sink, record)
    assert fold(tmp_path, sink, record) == first


def test_a_failed_write_changes_nothing(tmp_path: Path, sink: SinkSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the same batch is folded later."""
    with SinkState(tmp_path, sink, LOG) as state:
        state.fold([(0, 0, found("u", (0, 0), {"n": 1}))])
        before = state.meta
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", _full)
            with pytest.raises(OSError, match="full"):
                state.fold([(0, 1, found("w", (0, 1), {"n": 2}))])
        assert state.meta == before
        state.fold([(0, 1, found("w", (0, 1), {"n": 2}))])
    assert made(tmp_path, sink) == [{"n": 1}, {"n": 2}]


def _full(*_: object) -> int:
    raise OSError("disk full")


# Starts


def test_what_the_state_does_not_know_is_cut_off(tmp_path: Path, sink: SinkSpec) -> None:
    """Killed between the rows and the batch."""
    length = fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": 1}))).length
    with sink.partial(tmp_path).open("ab") as file:
        file.write(b'{"half":')
    with SinkState(tmp_path, sink, LOG):
        assert sink.partial(tmp_path).stat().st_size == length


@pytest.mark.parametrize("harm", ["missing", "shorter", "another"])
def test_a_file_that_is_not_ours_is_filled_again(tmp_path: Path, sink: SinkSpec, harm: str) -> None:
    """Everything is asked for from offset 0."""
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": 1})), (0, 1, found("w", (0, 1), {"n": 2})))
    partial = sink.partial(tmp_path)
    if harm == "missing":
        partial.unlink()
    else:
        partial.write_bytes(partial.read_bytes()[:-1] if harm == "shorter" else b"x" * 1000)
    meta = fold(tmp_path, sink)
    assert (meta.offsets, meta.length) == ({}, 0)


@pytest.mark.parametrize("log", [LogIdentity("other", "topic"), LogIdentity("cluster", "other")])
def test_a_state_of_another_log_is_filled_again(tmp_path: Path, sink: SinkSpec, log: LogIdentity) -> None:
    """Offsets mean nothing in a topic that was created again."""
    fold(tmp_path, sink, (0, 7, found("u", (0, 0), {"n": 1})))
    assert msgspec.structs.replace(fold(tmp_path, sink, log=log), serial="") == SinkMeta(log)


def test_a_second_worker_has_to_wait(tmp_path: Path, sink: SinkSpec) -> None:
    """One worker owns all partitions of a file."""
    with SinkState(tmp_path, sink, LOG), pytest.raises(RetryLater):
        SinkState(tmp_path, sink, LOG)
    with SinkState(tmp_path, sink, LOG):
        pass


def test_two_jobs_do_not_write_one_file_at_once(tmp_path: Path, sink: SinkSpec) -> None:
    """The second one waits, or is told."""
    with SinkState(tmp_path, sink, LOG), pytest.raises(RetryLater, match="another job"):
        SinkState(tmp_path, SinkSpec("k", sink.output), LOG)


@pytest.mark.parametrize("meta", [b'{"version":99}', b'{"log":["cluster","topic"],"version":0}', b"\x93", None])
def test_a_state_of_another_version_is_not_read(tmp_path: Path, sink: SinkSpec, meta: bytes | None) -> None:
    """Set aside, its file is filled again from offset 0."""
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": 1})))
    with SinkState(tmp_path, sink, LOG) as state:
        batch = WriteBatch(raw_mode=True)
        batch.delete(b"m") if meta is None else batch.put(b"m", meta)
        state._db.apply(batch)
    with pytest.raises(Unusable, match="of another version"):
        SinkState(tmp_path, sink, LOG)
    assert results.empty(tmp_path, sink).name == "aside-state"
    assert msgspec.structs.replace(fold(tmp_path, sink), serial="") == SinkMeta(LOG)


@pytest.mark.parametrize("failing", ["_opened", "_write"])
def test_a_state_that_cannot_begin_again_is_as_before_and_tries_again(
    failing: str, tmp_path: Path, sink: SinkSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as out of descriptors or space: the worker tries again until it succeeds."""

    def refuse(*_: object) -> None:
        raise RetryLater("no space", 1.0)

    with SinkState(tmp_path, sink, LOG) as state:
        state.fold([(0, 0, found("a", (0, 0), {"n": 1}))])
        with monkeypatch.context() as patched:
            patched.setattr(state, failing, refuse)
            for _ in range(2):
                with pytest.raises(RetryLater):
                    state.begin_again(raw=True)
        assert b"".join(state.chunks()).count(b"\n") == 1
        state.begin_again(raw=True)
        assert (state.meta.offsets, state.meta.raw, state.rows) == ({}, True, 0)
        state.fold([(0, 0, raw_found("a", {"n": 2}))])
        assert state.made
        assert len(state.made.blocks()) == 1


def test_a_state_whose_file_cannot_be_cut_is_opened_anew(
    tmp_path: Path, sink: SinkSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are gone from the state by then, so it keeps none of those in the file."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "cannot")

    with SinkState(tmp_path, sink, LOG) as state:
        state.fold([(0, 0, found("a", (0, 0), {"n": 1}))])
        with monkeypatch.context() as patched:
            patched.setattr(os, "ftruncate", fail)
            with pytest.raises(Unusable):
                state.begin_again(raw=True)
    with SinkState(tmp_path, sink, LOG) as state:
        assert (state.meta.offsets, state.meta.raw, state.rows) == ({}, True, 0)
    assert not sink.partial(tmp_path).read_bytes()


# Damage


def filled(data: Path, sink: SinkSpec, number: int = 6000) -> list[Any]:
    """Fold so many records, the first hundred of them superseded; returns the rows that the file must have."""
    records = [(0, n, found(f"u{n}", (0, n), {"n": n})) for n in range(number)]
    again = [(0, number + n, found(f"u{n}", (0, number + n), {"again": n})) for n in range(100)]
    fold(data, sink, *records, *again)
    return [{"n": n} for n in range(100, number)] + [{"again": n} for n in range(100)]


def damage(data: Path, sink: SinkSpec, at: float = 0.85) -> None:
    """Flip bytes in the middle of each table: 85 % of it lie behind the URLs, amid the places of rows."""
    tables = list(results.state_of(sink.folder(data)).glob("*.sst"))
    assert tables
    for table in tables:
        content = bytearray(table.read_bytes())
        middle = int(len(content) * at)
        content[middle : middle + 20] = bytes(byte ^ 0xFF for byte in content[middle : middle + 20])
        table.write_bytes(content)


@pytest.mark.parametrize("output", ["out.jsonl", "out.json", "out.csv", "-"])
def test_no_file_is_made_of_a_damaged_state(tmp_path: Path, output: str) -> None:
    """RocksDB's iterator ends at the damaged block as if there were no more rows; filled again, the file is whole."""
    sink = sink_of("j", output if output == "-" else str(tmp_path / output))
    rows = filled(tmp_path, sink)
    damage(tmp_path, sink)
    out = io.BytesIO()
    with pytest.raises(Unusable, match="Corruption"):
        finalise(tmp_path, sink, {}, out)
    assert out.getvalue() == b""
    assert list(tmp_path.glob("out.*")) in ([], [sink.partial(tmp_path)])
    with pytest.raises(Unusable, match="Corruption"):
        SinkState(tmp_path, sink, LOG)
    results.empty(tmp_path, sink)
    filled(tmp_path, sink)
    assert finalise(tmp_path, sink, {}, out) == len(rows)


def test_damage_that_a_record_meets_is_told_from_a_write_that_fails(tmp_path: Path, sink: SinkSpec) -> None:
    """Another try would not help; the next one that opens the state learns of it."""
    filled(tmp_path, sink)
    damage(tmp_path, sink, 0.5)
    with SinkState(tmp_path, sink, LOG) as state, pytest.raises(Unusable, match="Corruption"):
        state.fold([(0, 9000 + n, found(f"u{n}", (1, n), {"n": -n})) for n in range(6000)])
    with pytest.raises(Unusable, match="Corruption"):
        SinkState(tmp_path, sink, LOG)


@pytest.mark.parametrize("lost", ["a row's place", "a row"])
def test_what_is_written_is_counted_against_what_is_known(tmp_path: Path, lost: str) -> None:
    """By the bytes of all rows in the state, and by the lines that are in the partial file."""
    sink = sink_of("j", str(tmp_path / "out.json"))
    filled(tmp_path, sink, 200)
    with SinkState(tmp_path, sink, LOG) as state:
        start, length = list(state.live())[-1]
        if lost == "a row":
            os.pwrite(state._file, b" ", start + os.pread(state._file, length, start).index(b"\n"))
        else:
            batch = WriteBatch(raw_mode=True)
            batch.delete(next(iter(state._db.scan(b"s")))[0])
            state._db.apply(batch)
    with pytest.raises(Unusable, match=r"has \d+ (bytes of )?rows, and should have"):
        finalise(tmp_path, sink, {}, io.BytesIO())
    assert not Path(sink.output).exists()


# The file


def test_a_file_is_made_by_rename_where_nothing_is_superseded(tmp_path: Path, sink: SinkSpec) -> None:
    """No copy of gigabytes."""
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": 1})))
    inode = sink.partial(tmp_path).stat().st_ino
    made(tmp_path, sink)
    assert Path(sink.output).stat().st_ino == inode
    assert not sink.partial(tmp_path).exists()


def test_superseded_rows_are_left_out(tmp_path: Path, sink: SinkSpec) -> None:
    """In the order of the rows that stay."""
    fold(tmp_path, sink, *[(0, n, found(f"u{n % 3}", (0, n), {"n": n})) for n in range(8)])
    assert made(tmp_path, sink) == [{"n": 5}, {"n": 6}, {"n": 7}]
    assert list(tmp_path.glob("*.partial")) == []


def test_a_state_that_is_behind_makes_no_file(tmp_path: Path, sink: SinkSpec) -> None:
    """A file is complete or visibly partial."""
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": 1})))
    with pytest.raises(RetryLater, match="not passed"):
        finalise(tmp_path, sink, {0: 2}, io.BytesIO())
    assert not Path(sink.output).exists()
    assert finalise(tmp_path, sink, {0: 1, 1: 0}, io.BytesIO()) == 1


def test_a_file_that_was_made_stays(tmp_path: Path, sink: SinkSpec) -> None:
    """Making it again changes neither the file nor the state."""
    fold(tmp_path, sink, *[(0, n, found("u", (0, n), {"n": n})) for n in range(3)])
    assert [finalise(tmp_path, sink, {0: 3}, io.BytesIO()) for _ in range(3)] == [1, 1, 1]
    assert Path(sink.output).read_text() == '{"n":2}\n'


@pytest.mark.parametrize("harm", ["missing", "edited", "behind"])
def test_a_file_that_is_missing_or_stale_is_not_complete(tmp_path: Path, sink: SinkSpec, harm: str) -> None:
    """Then the sink runs again."""
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": 1})))
    assert not is_complete(tmp_path, sink, {0: 1})
    made(tmp_path, sink)
    assert is_complete(tmp_path, sink, {0: 1})
    if harm == "missing":
        Path(sink.output).unlink()
    elif harm == "edited":
        Path(sink.output).write_text("mine\n")
    assert not is_complete(tmp_path, sink, {0: 2 if harm == "behind" else 1})


def test_a_made_file_is_gone_on_with(tmp_path: Path, sink: SinkSpec) -> None:
    """More rows of the job: no second reading of all of crawl.items where FILE is still ours."""
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": 1})))
    made(tmp_path, sink)
    assert fold(tmp_path, sink, (0, 1, found("w", (0, 1), {"n": 2}))).offsets == {0: 2}
    assert Path(sink.output).read_text() == '{"n":1}\n'
    assert made(tmp_path, sink) == [{"n": 1}, {"n": 2}]


def test_a_json_file_is_one_array(tmp_path: Path) -> None:
    """Also of no rows."""
    sink = sink_of("j", str(tmp_path / "out.json"))
    for n in range(3):
        finalise(tmp_path, sink, {}, io.BytesIO())
        assert json.loads(Path(sink.output).read_text()) == [{"n": m} for m in range(n)]
        fold(tmp_path, sink, *[(0, m, found(f"u{m}", (0, m), {"n": m})) for m in range(n + 1)])


def test_a_csv_has_all_keys_in_order_of_appearance(tmp_path: Path) -> None:
    """Nested values are JSON, null and missing ones empty."""
    sink = sink_of("j", str(tmp_path / "out.csv"))
    rows = [{"url": "a", "n": None}, {"url": 'b",\n', "tags": ["x", 1], "ok": True}, {"n": 1.5}]
    fold(tmp_path, sink, *[(0, n, found(f"u{n}", (0, n), row)) for n, row in enumerate(rows)])
    finalise(tmp_path, sink, {}, io.BytesIO())
    with Path(sink.output).open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["url", "n", "tags", "ok"],
            ["a", "", "", ""],
            ['b",\n', "", '["x",1]', "true"],
            ["", "1.5", "", ""],
        ]


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1+1", "\r=1+1", "\n=1+1", "=", "-", "+1 2", "-1e"]
"""Texts that a spreadsheet calculates, that it trims before, or that only begin so."""

HARMLESS = ["-5", "+5", "-0.5", "-1.5e-3", "5", "a=b", "'=1", " =1", "a\rb", ""]
"""Numbers stay numbers, also those that a spider gave as text."""


def csv_of(tmp_path: Path, row: dict[str, object], *, formulas: bool = False) -> list[list[str]]:
    """The records of a CSV file with one row."""
    sink = msgspec.structs.replace(sink_of("j", str(tmp_path / "out.csv")), formulas=formulas)
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), row)))
    finalise(tmp_path, sink, {}, io.BytesIO())
    with Path(sink.output).open(newline="") as file:
        return list(csv.reader(file))


def test_a_text_that_a_spreadsheet_would_calculate_is_a_text_in_a_csv(tmp_path: Path) -> None:
    """An apostrophe stands before it; in the header too, whose keys may be a page's."""
    header, cells = csv_of(tmp_path, {text or "empty": text for text in FORMULAS + HARMLESS})
    assert cells == [f"'{text}" for text in FORMULAS] + HARMLESS
    assert header == [f"'{text}" for text in FORMULAS] + [text or "empty" for text in HARMLESS]


def test_a_number_is_a_number_in_a_csv(tmp_path: Path) -> None:
    """A negative one too."""
    assert csv_of(tmp_path, {"n": -5, "x": -0.5, "list": [-1], "no": None})[1] == ["-5", "-0.5", "[-1]", ""]


def test_formulas_stay_in_a_csv_on_request(tmp_path: Path) -> None:
    """As they came from the page."""
    assert csv_of(tmp_path, {text: text for text in FORMULAS}, formulas=True) == [FORMULAS, FORMULAS]


def test_a_csv_is_made_anew_for_the_other_choice_about_formulas(tmp_path: Path) -> None:
    """Other files are the same either way."""
    sink = msgspec.structs.replace(sink_of("j", str(tmp_path / "out.csv")), formulas=True)
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": "=1"})))
    finalise(tmp_path, sink, {0: 1}, io.BytesIO())
    other = sink_of("j", sink.output)
    assert other.id == sink.id
    assert [is_complete(tmp_path, one, {0: 1}) for one in (sink, other)] == [True, False]
    fold(tmp_path, other, (0, 0, found("u", (0, 0), {"n": "=1"})))
    finalise(tmp_path, other, {0: 1}, io.BytesIO())
    assert Path(sink.output).read_text() == "n\n'=1\n"
    lines = sink_of("j", str(tmp_path / "out.jsonl"))
    fold(tmp_path, lines, (0, 0, found("u", (0, 0), {"n": "=1"})))
    finalise(tmp_path, lines, {0: 1}, io.BytesIO())
    assert is_complete(tmp_path, msgspec.structs.replace(sink_of("j", lines.output), formulas=True), {0: 1})


def test_standard_output_gets_the_newest_rows_each_time(tmp_path: Path) -> None:
    """Its rows are kept in the data folder, so a second run can print them again."""
    sink = sink_of("j", "-")
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": 1})), (0, 1, found("u", (0, 1), {"n": 2})))
    for _ in range(2):
        out = io.BytesIO()
        assert finalise(tmp_path, sink, {0: 2}, out) == 1
        assert out.getvalue() == b'{"n":2}\n'


def test_a_large_file_is_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece ends with a row, however small the pieces."""
    monkeypatch.setattr(made_module, "READ_BYTES", 7)
    sink = sink_of("j", str(tmp_path / "out.json"))
    fold(tmp_path, sink, *[(0, n, found(f"u{n % 20}", (0, n), {"n": n, "x": "y" * n})) for n in range(40)])
    finalise(tmp_path, sink, {}, io.BytesIO())
    assert [row["n"] for row in json.loads(Path(sink.output).read_text())] == list(range(20, 40))


@pytest.mark.parametrize("output", ["out.txt", "out", "missing/out.csv"])
def test_an_output_that_cannot_be_is_refused_at_once(tmp_path: Path, output: str) -> None:
    """Before anything is crawled."""
    with pytest.raises(Misconfigured):
        sink_of("j", str(tmp_path / output))


def test_a_pipe_is_refused_as_an_output(tmp_path: Path) -> None:
    """FILE is made by a rename, which would take its name: who reads from the pipe waits for ever."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(Misconfigured, match="no regular file"):
        sink_of("j", str(tmp_path / "pipe.jsonl"))


@pytest.mark.parametrize("target", ["there.jsonl", "missing.jsonl", "link.jsonl"])
def test_a_link_is_refused_as_an_output(tmp_path: Path, target: str) -> None:
    """The rename would replace the link; in a folder like `/tmp` a stranger may say where it leads."""
    (tmp_path / "there.jsonl").touch()
    (tmp_path / "link.jsonl").symlink_to(target)
    with pytest.raises(Misconfigured, match=rf"it is a link.*name {tmp_path / target}"):
        sink_of("j", str(tmp_path / "link.jsonl"))


def test_a_file_that_cannot_be_made_is_named_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up meanwhile: the rows stay, so the next time makes it."""
    sink = sink_of("j", str(tmp_path / "out.csv"))
    fold(tmp_path, sink, (0, 0, found("u", (0, 0), {"n": 1})))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _has_no_space)
        with pytest.raises(OSError, match=r"No space left.*the same command.*out\.csv") as caught:
            finalise(tmp_path, sink, {0: 1}, io.BytesIO())
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.glob("*.new.partial"))
    assert finalise(tmp_path, sink, {0: 1}, io.BytesIO()) == 1
    assert Path(sink.output).read_text() == "n\n1\n"


def _has_no_space(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_worker_is_told_its_sink_through_the_environment(sink: SinkSpec) -> None:
    """And says what it needs when it is not."""
    assert sink.id != sink_of("k", sink.output).id
    own = PrivateOutputs("j", (sink.output,))
    assert PrivateOutputs.read(own.environ()) == own
    assert PrivateOutputs.read({}) is None
    with pytest.raises(Misconfigured, match="CRAWLOG_SINK"):
        PrivateOutputs.read({"CRAWLOG_SINK": "mine"})


# The model

URLS = st.sampled_from("abcde")
RECORDS = st.lists(st.tuples(st.integers(0, 2), URLS, st.integers(0, 9), st.integers(0, 2)), max_size=30)
EVENTS = st.lists(st.sampled_from(["read", "read", "replay", "kill", "tear", "cut", "lose", "make"]), max_size=12)


class Log:
    """Three partitions of crawl.items, and what a sink makes of them."""

    def __init__(self, records: list[tuple[int, str, int, int]]) -> None:
        self.partitions: list[list[Entry]] = [[], [], []]
        self.newest: dict[str, tuple[int, list[Any]]] = {}
        for n, (_, url, page, rows) in enumerate(records):
            partition = ord(url) % 3  # as by key: the records of a URL are in one partition, in order
            content = [{"url": url, "record": n % 4, "row": row} for row in range(rows)]
            self.partitions[partition].append(found(url, (1, page), *content))
            if page >= self.newest.get(url, (-1, []))[0]:
                self.newest[url] = (page, content)

    def ends(self) -> dict[int, int]:
        """Where each partition ends."""
        return {at: len(partition) for at, partition in enumerate(self.partitions)}

    def after(self, offsets: dict[int, int], most: int) -> Iterator[tuple[int, int, Entry]]:
        """Some records from these offsets on."""
        for at, partition in enumerate(self.partitions):
            start = offsets.get(at, 0)
            yield from ((at, offset, partition[offset]) for offset in range(start, min(len(partition), start + most)))


@given(RECORDS, EVENTS)
def test_any_history_gives_the_newest_rows(records: list[tuple[int, str, int, int]], events: list[str]) -> None:
    """Replays, kills at any point, lost or torn files, files made in between: the file at the end is the dict's."""
    log = Log(records)
    with TemporaryDirectory() as folder:
        data = Path(folder)
        sink = sink_of("j", str(data / "out.jsonl"))
        for event in events:
            _happen(event, data, sink, log)
        with SinkState(data, sink, LOG) as state:
            state.fold(log.after(state.meta.offsets, 1000))
        finalise(data, sink, log.ends(), io.BytesIO())
        rows = [json.loads(line) for line in Path(sink.output).read_text().splitlines()]
    assert sorted(rows, key=str) == sorted((row for _, content in log.newest.values() for row in content), key=str)


def _happen(event: str, data: Path, sink: SinkSpec, log: Log) -> None:
    partial = sink.partial(data)
    with SinkState(data, sink, LOG) as state:
        if event == "replay":
            state.fold(log.after({}, 3))
        elif event == "kill":  # between the rows and the batch
            os.pwrite(state._file, b'{"url":"never"}\n', state.meta.length)
        else:
            state.fold(log.after(state.meta.offsets, 2))
    if event == "tear":
        with partial.open("r+b") as file:
            file.truncate(partial.stat().st_size // 2)
    elif event == "cut":
        partial.write_bytes(b"")
    elif event == "lose":
        partial.unlink()
    elif event == "make":
        finalise(data, sink, {}, io.BytesIO())


def test_every_format_is_known() -> None:
    """By the name's end, in any case, as the command line takes it."""
    for spelled in (str, str.upper):
        for suffix, kind in registry.BUILT_IN.items():
            forms = {"-": "-", "/": "memory://x/"}
            output = forms.get(suffix, f"x{suffix}" if suffix.startswith(".") else f"{suffix}:x")
            assert registry.sink_class(spelled(output)) is kind


def test_a_state_whose_file_another_sink_writes_is_forgotten(tmp_path: Path, sink: SinkSpec) -> None:
    """Not one that somebody has open, nor that of another file; of standard output only what is the job's."""
    later = sink_of("j", sink.output, epoch=1)
    others = [
        sink_of("k", sink.output),
        sink_of("j", str(tmp_path / "more.jsonl")),
        SinkSpec("j", "-"),
        SinkSpec("k", "-"),
    ]
    for one in (sink, *others, later):
        fold(tmp_path, one, (0, 0, found("u", (0, 0), {"a": 1})))
    with SinkState(tmp_path, sink, LOG):
        assert results.forget_others(tmp_path, later) == [others[0]]
    assert set(known_sinks(tmp_path)) == {sink, *others[1:], later}
    assert results.forget_others(tmp_path, later) == [sink]
    assert results.forget_others(tmp_path, SinkSpec("j", "-", epoch=2)) == [others[2]]
    assert set(known_sinks(tmp_path)) == {others[1], others[3], later}


def open_files() -> int:
    """Of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_state_whose_file_another_process_writes_can_be_opened_later(tmp_path: Path, sink: SinkSpec) -> None:
    """No attempt leaves a lock behind, neither of rows nor of raw items."""
    piped = msgspec.structs.replace(sink, pipelines=True)
    other = os.open(piped.partial(tmp_path), os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    before = open_files()
    for _ in range(3):
        with pytest.raises(RetryLater, match=r"out\.jsonl\.partial is being written by another job"):
            SinkState(tmp_path, piped, LOG)
    assert open_files() == before
    os.close(other)
    SinkState(tmp_path, piped, LOG).close()


def test_a_replay_has_rows_read_again_by_whoever_opens_the_state_next(tmp_path: Path) -> None:
    """From an offset the rows stay; from the start they go. FILE is not complete until then."""
    sink = sink_of("j", str(tmp_path / "out.jsonl"))
    fold(tmp_path, sink, *[(0, n, found(f"u{n}", (0, n), {"n": n})) for n in range(4)])
    finalise(tmp_path, sink, {0: 4}, io.BytesIO())
    assert is_complete(tmp_path, sink, {0: 4})
    assert meta_of(tmp_path, sink).offsets == {0: 4}
    read_again(tmp_path, sink, {0: 2})
    assert not is_complete(tmp_path, sink, {0: 4})
    with SinkState(tmp_path, sink, None) as state:
        assert (state.meta.offsets, state.rows) == ({0: 2}, 4)
    with SinkState(tmp_path, sink, None) as state:
        state.fold([(0, 2, None), (0, 3, None)])
    assert meta_of(tmp_path, sink).offsets == {0: 4}, "it is done once"
    read_again(tmp_path, sink, {0: 0}, anew=True)
    with SinkState(tmp_path, sink, None) as state:
        assert (state.meta.offsets, state.rows) == ({0: 0}, 0)
        with pytest.raises(RetryLater):
            meta_of(tmp_path, sink)
