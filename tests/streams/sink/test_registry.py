"""Which class writes an output, and what is said where none does."""

import io
import sys
from collections.abc import Callable
from importlib import invalidate_caches
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

import msgspec
import pytest

import crawlog
from crawlog.schemas import items
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import Misconfigured, Unusable
from crawlog.streams.sink import registry
from crawlog.streams.sink.batch import entry
from crawlog.streams.sink.finish import finalise, is_complete
from crawlog.streams.sink.formats import ResultRows, Sink
from crawlog.streams.sink.registry import BUILT_IN, is_file, sink_class, sink_of
from crawlog.streams.sink.state import SinkState
from crawlog.streams.sink.state_folder import forget_others
from crawlog.streams.sink_groups import SinkSpec

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test installs is installed, whatever sinks the environment has."""

    def entry_points(group: str) -> list[EntryPoint]:
        found = distributions(path=[*map(str, tmp_path.glob("installed-*"))])
        return [point for one in found for point in one.entry_points if point.group == group]

    monkeypatch.setattr(registry, "entry_points", entry_points)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with one module and one entry point on the path, as an installer does."""

    def put(package: str, name: str, module: str, code: str, value: str = "") -> None:
        folder = tmp_path / f"installed-{package}"
        metadata = folder / f"{package}-1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text(f"[crawlog.sinks]\n{name} = {value or f'{module}:Mine'}\n")
        (folder / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, module, raising=False)
        invalidate_caches()

    return put


TEXT = """
from crawlog import Sink
class Mine(Sink):
    def write(self, rows, out):
        out.writelines(f"{self.spec.job} {row['n']}\\n".encode() for row in rows)
"""

STORE = """
from crawlog import Sink
ROWS = {}
class Mine(Sink):
    def write(self, rows, out):
        ROWS[self.spec.output] = list(rows)
"""

FAILS = """
from crawlog import Sink
class Mine(Sink):
    def write(self, rows, out):
        out.write(b"half")
        raise KeyError("price")
"""


def filled(data: Path, spec: SinkSpec) -> None:
    """One record with one row."""
    record = items.encode(ItemsRecord("j", "http://a.example/", (0, 0), [msgspec.Raw(b'{"n":1}')], 0))
    with SinkState(data, spec, LogIdentity("cluster", "topic")) as results:
        results.fold([(0, 0, entry(record, spec))])


def test_the_front_door_has_the_base_class() -> None:
    """`from crawlog import Sink`."""
    assert crawlog.Sink is Sink


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("-", "-"),
        ("rows.jsonl", ".jsonl"),
        ("a.b/rows.2026.JSON", ".json"),
        ("x.json.csv", ".csv"),
        ("rows.csv.GZ", ".csv.gz"),
        ("rows.gz.jsonl.zst", ".jsonl.zst"),
        ("rows.parquet", ".parquet"),
        ("a:b.csv", ".csv"),
        ("/tmp/a:b.csv", ".csv"),
    ],
)
def test_the_end_of_a_name_selects_the_class(output: str, name: str) -> None:
    """In any case; a colon in a file's name makes no address of it."""
    assert sink_class(output) is BUILT_IN[name]
    assert is_file(output) == (output != "-")


def test_the_longest_suffix_wins(install: Install) -> None:
    """`.csv.bz2` may be another package's than `.bz2`."""
    install("one", ".bz2", "mine_bz2", TEXT)
    install("two", ".csv.bz2", "mine_csv_bz2", TEXT)
    assert sink_class("x.csv.bz2").__module__ == "mine_csv_bz2"
    assert sink_class("x.tar.bz2").__module__ == "mine_bz2"


def test_a_plugin_does_not_replace_a_built_in_format(install: Install) -> None:
    """An installed package would change what every command writes."""
    install("one", ".csv", "mine_csv", TEXT)
    assert sink_class("x.csv") is BUILT_IN[".csv"]


def test_a_format_of_a_plugin_makes_its_file(tmp_path: Path, install: Install) -> None:
    """By rename, and only when the job is finished, as all formats."""
    install("one", ".txt", "mine_txt", TEXT)
    spec = sink_of("j", str(tmp_path / "rows.txt"))
    filled(tmp_path, spec)
    assert not (tmp_path / "rows.txt").exists()
    assert finalise(tmp_path, spec, {0: 1}, io.BytesIO()) == 1
    assert (tmp_path / "rows.txt").read_text() == "j 1\n"
    assert is_complete(tmp_path, spec, {0: 1})


@pytest.mark.parametrize("address", ["mine://host/table", "MINE:file"])
def test_a_store_gets_the_rows_each_time(tmp_path: Path, install: Install, address: str) -> None:
    """No file is made of its address, and whether it still has the rows is not known."""
    install("one", "mine", "mine_store", STORE)
    spec = sink_of("j", address)
    filled(tmp_path, spec)
    for _ in range(2):
        assert finalise(tmp_path, spec, {0: 1}, io.BytesIO()) == 1
        assert sys.modules["mine_store"].ROWS.pop(address) == [{"n": 1}]
        assert not is_complete(tmp_path, spec, {0: 1})
    assert spec.partial(tmp_path).parent == spec.folder(tmp_path)


def test_two_jobs_may_fill_one_store(tmp_path: Path, install: Install) -> None:
    """The state of the other job stays; that of an earlier epoch of the same job goes."""
    install("one", "mine", "mine_store", STORE)
    mine, later, other = (sink_of(job, "mine://host/t", epoch) for job, epoch in (("j", 0), ("j", 1), ("k", 0)))
    for spec in (mine, later, other):
        filled(tmp_path, spec)
    assert forget_others(tmp_path, later) == [mine]


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            "rows.pdf",
            r"pdf: .* end in .jsonl, .json, .csv \(each also .gz or .zst\), .xlsx, .parquet, .txt, or be -.*extending",
        ),
        ("rows", r"the name must end in"),
        ("", r"the name must end in"),
        (
            "odd://me:pw@host/x",
            r"-o odd://\*+@host/x: there is no such store \(.*mine\), and .* ends in .jsonl",
        ),
        (
            "odd://me:pw@host/x.csv",
            r"^odd://\*+@host/x.csv: cannot be written: Protocol not known: odd\. ",
        ),
        ("s3://key:pw@bucket/x.csv", r"^s3://\*+@bucket/x.csv: credentials come from the environment"),
    ],
)
def test_an_unknown_output_is_told_which_there_are(install: Install, output: str, told: str) -> None:
    """Built-in and installed ones."""
    install("one", ".txt", "mine_txt", TEXT)
    install("two", "mine", "mine_store", STORE)
    with pytest.raises(Misconfigured, match=told):
        sink_of("j", output)


@pytest.mark.parametrize(
    ("code", "value", "told"),
    [
        ("import no_such_module", "", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:", "", "cannot be loaded: SyntaxError"),
        ("", "mine_odd:Other", "cannot be loaded: AttributeError"),
        ("raise OSError('licence')", "", "cannot be loaded: OSError: licence"),
        ("Mine = dict", "", "not a class derived from crawlog.Sink"),
        ("from crawlog import Sink\nclass Mine(Sink):\n    pass", "", "with a method `write`"),
    ],
)
def test_a_broken_plugin_is_named_with_its_package(install: Install, code: str, value: str, told: str) -> None:
    """Before anything is crawled, with the command that may mend it."""
    install("odd-sink", ".odd", "mine_odd", code, value)
    with pytest.raises(Misconfigured) as caught:
        sink_of("j", "rows.odd")
    text = str(caught.value)
    assert text.startswith("-o rows.odd: the sink for .odd, mine_odd:")
    assert all(part in text for part in ("of the package odd-sink", told, "odd-sink`"))


def test_two_plugins_for_one_name_are_told(install: Install) -> None:
    """Which of them would be taken is chance."""
    install("one", ".txt", "mine_a", TEXT)
    install("two", ".TXT", "mine_b", TEXT)
    with pytest.raises(Misconfigured, match=r"several packages have a sink for .txt: (one, two|two, one)"):
        sink_of("j", "x.txt")


def test_a_sink_that_fails_leaves_no_half_file(tmp_path: Path, install: Install) -> None:
    """The message names its class, the error and what to do."""
    install("one", ".txt", "mine_fails", FAILS)
    spec = sink_of("j", str(tmp_path / "rows.txt"))
    filled(tmp_path, spec)
    with pytest.raises(Misconfigured, match=r"(?s)mine_fails:Mine, failed: KeyError: 'price'.*the same command again"):
        finalise(tmp_path, spec, {0: 1}, io.BytesIO())
    assert [path.name for path in tmp_path.glob("rows*")] == ["rows.txt.partial"]


def test_a_sink_may_refuse_an_output(tmp_path: Path, install: Install) -> None:
    """In its own words; an error of another kind is told with the class that raised it."""
    code = TEXT + "    def check(self):\n        raise Misconfigured('no password')\n"
    install("one", ".txt", "mine_refuses", "from crawlog.streams.errors import Misconfigured\n" + code)
    install("two", ".log", "mine_breaks", code.replace("Misconfigured", "RuntimeError"))
    with pytest.raises(Misconfigured, match=r"^no password"):
        sink_of("j", str(tmp_path / "x.txt"))
    with pytest.raises(Misconfigured, match="mine_breaks:Mine, failed: RuntimeError: no password"):
        sink_of("j", str(tmp_path / "x.log"))


def test_rows_are_read_from_the_start_each_time() -> None:
    """A format may need two passes."""
    rows = ResultRows(lambda: iter([b'{"n":1}\n{"n":2}\n', b'{"n":3}\n']))
    assert [list(rows), list(rows)] == [[{"n": 1}, {"n": 2}, {"n": 3}]] * 2


def test_damage_of_the_state_is_no_fault_of_the_sink(tmp_path: Path, install: Install, monkeypatch: Any) -> None:
    """It is told as damage, so that the rows are filled again."""
    install("one", ".txt", "mine_txt", TEXT)
    spec = sink_of("j", str(tmp_path / "rows.txt"))
    filled(tmp_path, spec)
    monkeypatch.setattr(SinkState, "chunks", _damaged)
    with pytest.raises(Unusable, match="damaged"):
        finalise(tmp_path, spec, {0: 1}, io.BytesIO())
    assert not list(tmp_path.glob("*.new.partial"))


def _damaged(_: SinkState) -> None:
    raise Unusable("damaged")


def test_an_archive_is_a_folder_that_can_be_made_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has another working folder, so its place is absolute; what is wrong is told before the crawl."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert sink_of("j", "warc:new").output == f"warc:{tmp_path}/new"
    assert not sink_of("j", "warc:new").is_file
    for output, told in (("warc:file", "it is a file"), ("warc:no/new", "`mkdir -p` makes it")):
        with pytest.raises(Misconfigured, match=told):
            sink_of("j", output)
    monkeypatch.setattr("crawlog.streams.sink.formats.warc_folder.find_spec", lambda _: None)
    with pytest.raises(Misconfigured, match=r"pip install 'crawlog\[warc\]'"):
        sink_of("j", "warc:new")
