"""The one way out for text: no control character of a page, a record or a file reaches a terminal or a log."""

import ast
import functools
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import rich_click as click
import structlog
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from crawlog import outcome, terminal
from crawlog.cli.main import cli, main
from crawlog.cli.stored import topic_lines
from crawlog.jobs.live import Frame, Screen, view
from crawlog.schemas import dead, items, pages
from crawlog.schemas import urls as u
from crawlog.schemas.progress import JobCounts
from crawlog.streams import logs
from crawlog.streams.dead_letters import Letter, letter_fate
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import TopicRow, ensure_topics
from crawlog.streams.log.topics import TOPIC_KINDS, Topics
from crawlog.streams.printable import escaped
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.place import Places, partition_of

ROOT = Path(__file__).parents[2]

CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
"""C0, DEL, C1, line and paragraph separators, and what turns the direction of text."""

HOSTILE = "".join(map(chr, CONTROLS)) + "\x1b]0;title\x07\x1b[2J"


VERBS = "run|up|down|status|worker|engine|seed|topics|control|snapshot|verify|why|dead|replay|doctor|settings"


@functools.cache
def nodes() -> list[tuple[str, list[ast.AST]]]:
    """All modules, each with what it consists of; read once, for it takes a second."""
    paths = [path for folder in ("crawlog", "streams", "agents", "schemas") for path in (ROOT / folder).rglob("*.py")]
    return [(path.name, list(ast.walk(ast.parse(path.read_text())))) for path in paths]


def strings() -> Iterator[tuple[str, str]]:
    """The strings of all modules, with the module's name and without its docstrings."""
    for name, module in nodes():
        docs = {id(node.value) for node in module if isinstance(node, ast.Expr)}
        for node in module:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield name, node.value


def test_a_message_without_a_reader_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run 2>&1 | tee log` and Ctrl-C end tee first. An answer without a reader is an error."""
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as out:
        terminal.tell("the disk is full", to=out)
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(BrokenPipeError):
            terminal.answer("a row")
    terminal.tell("closed", to=out)


def test_every_command_that_a_message_names_is_marked_as_one() -> None:
    """In backticks, so that the options are repeated there; a message may begin with the command that was typed."""
    bare = re.compile(rf"(?<!`)\bcrawlog ({VERBS})\b(?! (cancel|): )(?! $)")
    found = {(name, text) for name, text in strings() if bare.search(text) and name not in WHOLE_COMMANDS}
    assert not {one for one in found if "`crawlog" not in one[1]} - LIVE


def test_a_dead_letter_is_called_so_in_every_message() -> None:
    """A letter alone is one of the alphabet."""
    alone = re.compile(r"(?<![Dd]ead )\bletters?\b(?!,| or digit)")
    texts = [text for _, text in strings() if alone.search(text)]
    assert [text for text in texts if "product token" not in text and "only letters" not in text] == []


def test_urls_are_dropped_and_dead_letters_laid_aside() -> None:
    """One word for one thing, whatever stands in the log."""
    letter = Letter(0, 0.0, "parse", "j", ("crawl.pages", 0, 0), "no")
    assert [letter_fate(replace(letter, handled=how)) for how in ("", "redriven", "dropped")] == [
        "",
        "redriven",
        "laid aside",
    ]


WHOLE_COMMANDS = {"new_spider.py", "alerts.py"}
"""Modules whose texts are commands alone: a file to begin with, and the field `hint` of an alert."""

LIVE = {
    ("live.py", "crawlog control list"),
    ("live.py", "crawlog dead list"),
    ("live.py", " · the log does not answer: crawlog doctor"),
    ("top.py", "the log does not answer: crawlog doctor"),
    ("top_text.py", "paused: crawlog control resume --stage "),
}
"""Cells of a table on the screen of a running crawl, which has no room for more."""


@pytest.mark.parametrize(
    ("options", "line", "told"),
    [
        ([], "see `crawlog dead list`", "see `crawlog dead list`"),
        (["--data", "a b"], "see `crawlog dead list`, or not", "see `crawlog dead list --data 'a b'`, or not"),
        (
            ["--data", "d", "--bootstrap", "h:1", "--config", "f.toml"],
            "`crawlog up` or `crawlog why http://a/`",
            (
                "`crawlog up --data d --bootstrap h:1 --config f.toml` or "
                "`crawlog why http://a/ --data d --bootstrap h:1 --config f.toml`"
            ),
        ),
        (["-s", "kafka.prefix=p."], "see `crawlog topics`", "see `crawlog topics -s kafka.prefix=p.`"),
        (["-s", "kafka.sasl_password=secret", "-s", "run.depth=1"], "see `crawlog topics`", "see `crawlog topics`"),
        (["--data", "d"], "`crawlog run` (pid 7) works on it", "`crawlog run` (pid 7) works on it"),
        (["--data", "d"], "see `crawlog run --help`", "see `crawlog run --help`"),
        (["--data", "d"], "`crawlog down --data e` ends it", "`crawlog down --data e` ends it"),
        (["--data", "d"], "asked `crawlog probe url`", "asked `crawlog probe url`"),
    ],
)
def test_a_hint_repeats_the_options_that_say_where_the_crawl_is(
    options: list[str],
    line: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """As the command was given them, quoted for a shell; no other setting, as it may be a secret."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.toml").touch()
    with pytest.raises(SystemExit):
        main(["settings", "--json", *options])
    capfd.readouterr()
    terminal.tell(line)
    Screen(sys.stderr).say(line)
    shown = capfd.readouterr().err
    assert shown.startswith(told + "\n")
    assert " ".join(shown.split()).count(told) == 2


def test_a_command_without_such_options_repeats_none(capfd: pytest.CaptureFixture[str]) -> None:
    """Nor those of another command in the same process."""
    for arguments in (["settings", "--data", "d"], ["probe", "nothing"]):
        with pytest.raises(SystemExit):
            main(arguments)
    terminal.tell("see `crawlog topics`")
    assert capfd.readouterr().err.endswith("see `crawlog topics`\n")


def harmful(text: str) -> set[str]:
    """The control characters in what a terminal gets, but for line ends."""
    return set(text) & set(map(chr, CONTROLS)) - {"\n"}


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a worker logs."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logs.configure("info")
    yield out
    logging.root.handlers[:] = []


def test_a_log_line_has_no_control_characters(logged: io.StringIO) -> None:
    """In a value, in a library's message, in a traceback: each event stays one line."""
    log = structlog.get_logger()
    log.info("found", url=HOSTILE, quiet="plain", bare="a\x9bb")
    logging.getLogger("aiohttp").error("a library says %s", HOSTILE)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("failed")
    said = logged.getvalue()
    assert harmful(said) == set()
    assert said.count("\n") == 3
    assert 'quiet=plain bare="a\\u009bb"' in said


def test_an_error_message_has_no_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    """Nor its traceback; a message keeps its own lines."""

    def failing() -> int:
        raise Misconfigured(f"no such thing: {HOSTILE.replace(chr(10), '')}\nSee `crawlog --help`.")

    assert outcome.exit_code(failing, verbose=lambda: True) == outcome.USAGE
    said = capfd.readouterr().err
    assert harmful(said) == set()
    assert "\\u001b[2J" in said
    assert "\nSee `crawlog --help`.\n" in said


def frame() -> Frame:
    """A frame whose names come from records of a foreign client."""
    hosts = [("http://[fe80::1]:80", 3, 1.0), (f"[red]{HOSTILE}", 2, 0.0)]
    return Frame(HOSTILE, 1.0, JobCounts(queued=5), 2.0, {"fetch": 1, "parse": 2}, hosts, HOSTILE)


def test_a_line_of_progress_has_no_control_characters() -> None:
    """Host names come from the log, and what is said of a worker is the last line of its own."""
    out = io.StringIO()
    shown = view(out)
    shown.say(f"worker parse-0 ended with code 1: {HOSTILE}")
    shown.show(frame())
    assert harmful(out.getvalue()) == set()
    assert out.getvalue().count("\n") == 2


def drained(terminal: int) -> str:
    """All that a terminal got, once its writer has closed it; what was written comes in pieces, and late."""
    with os.fdopen(terminal, "rb", buffering=0) as out:
        pieces = []
        with suppress(OSError):  # EIO is its end
            while piece := out.read(1 << 16):
                pieces.append(piece)
    return b"".join(pieces).decode()


def test_the_live_view_has_no_control_characters_but_its_own() -> None:
    """Nor does a host in brackets count as the view's markup."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        shown = view(terminal)
        assert isinstance(shown, Screen)
        shown.say(f"a line {HOSTILE}")
        shown.show(frame())
        shown.close()
    drawn = drained(ours)
    assert "http://[fe80::1]:80" in drawn
    assert "[red]" in drawn
    assert harmful(drawn) <= set("\x1b\r")  # the view's own: colours, and going back to paint again
    assert "\x1b]0" not in drawn
    assert "\x1b[2J" not in drawn
    assert "\\u001b[2J" in drawn


@pytest.mark.broker
def test_records_of_others_put_no_control_character_on_a_terminal(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`why`, `dead list`, `dead show`, as text and as JSON, which says the same."""
    monkeypatch.chdir(tmp_path)
    url = "http://a.example/x"
    ensure_topics(cluster)
    names, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    place = Places(cluster.kafka.partitions).of(url).partition
    header = [(pages.HEADER, pages.encode(pages.PageMeta(url, "j", http=200, content_type=HOSTILE, error=HOSTILE)))]
    producer.send(names.pages, b"<title>", partition=place, headers=header)
    result = u.Result(url, 1 << 16, "fetched", http=200, page=(place, 0), reason=HOSTILE)
    for record in (
        u.UrlsRecord(job="j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any"))),
        u.UrlsRecord(job="j", urls=[u.FoundUrl(url, parent=HOSTILE)]),
        u.UrlsRecord(job="j", results=[result]),
    ):
        producer.send(names.urls, u.encode(record), partition=place)
    row = items.ItemsRecord("j", url, (place, 0), [msgspec.Raw(msgspec.json.encode({"t": HOSTILE}))], spider=HOSTILE)
    key = items.key("j", url)
    at = partition_of(key.decode(), cluster.kafka.partitions)
    producer.send(names.items, items.encode(row), key=key, partition=at)
    letter = dead.DeadLetter(names.pages, place, 0, "parse", HOSTILE, job=HOSTILE, traceback=f"1 {HOSTILE}\n2")
    own = [("own", HOSTILE.encode())]
    producer.send(names.dead, HOSTILE.encode(), key=HOSTILE.encode(), partition=0, headers=letter.headers() + own)
    producer.flush(10)

    def told(*command: str) -> str:
        with pytest.raises(SystemExit) as end:
            main([*command, "--bootstrap", cluster.kafka.bootstrap, "-s", f"kafka.prefix={cluster.kafka.prefix}"])
        said = capfd.readouterr()
        assert (end.value.code, harmful(said.out + said.err)) == (0, set())
        return said.out

    assert len(told("dead", "list").splitlines()) == 3
    assert "\\u009b" in told("dead", "show", "0")
    assert "\\u202e" in told("why", url)
    [listed] = [json.loads(line) for line in told("dead", "list", "--json").splitlines()]
    assert listed["error"] == HOSTILE
    events = json.loads(told("why", url, "--json"))["events"]
    assert {"t": HOSTILE} in [row for event in events for row in event["detail"].get("items", [])]


def test_rows_on_a_terminal_have_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """They are the same data; in a file or a pipe they stay as they are, byte for byte."""
    row = msgspec.json.encode({"title": HOSTILE}) + b"\n"
    terminal.rows().writelines([row])
    terminal.rows().flush()
    assert capfdbinary.readouterr().out == row
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    terminal.rows().writelines([row * 2, row])
    shown = capfdbinary.readouterr().out.decode()
    assert harmful(shown) == set()
    assert [json.loads(line) for line in shown.splitlines()] == [{"title": HOSTILE}] * 3


EXITS = {"print", "echo", "secho", "Console", "print_exception", "print_exc", "print_stack"}
"""What writes to a terminal by itself."""


def _raw_exits(file: str, module: list[ast.AST]) -> Iterator[str]:
    for node in module:
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        on = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
        if name in EXITS or (name in ("write", "writelines") and on in ("sys.stdout", "sys.stderr")):
            yield f"{file}: {ast.unparse(node)}"


def test_all_text_leaves_by_one_function() -> None:
    """Whoever writes past it is found here; below are those whose text is our own alone."""
    found = [line for name, module in nodes() for line in _raw_exits(name, module)]
    assert sorted(found) == [
        "access.py: sys.stdout.write(hashed(sys.stdin.readline().rstrip('\\n')) + '\\n')",  # scrypt and base64
        "child_user.py: print(_found_user()[1])",  # to the process that asked
        "exit_codes.py: sys.stderr.write(f'{LAST_WORDS}{json.dumps(str(error))}\\n')",  # JSON escapes them as well
        "first_damage.py: sys.stderr.write('\\n'.join([f'crawlog: {found[0]}', *_lines(found)]) + '\\n')",  # our topics
        (
            "first_damage.py: sys.stderr.write('librdkafka has met bytes in the log that it cannot read, and aborted; "
            "looking for them\\n')"
        ),
        "jars.py: Console(stderr=True)",
        "live.py: Console(file=out)",
        "live.py: self._console.print(Text('\\n'.join((escaped(hinted(line)) for line in lines))))",
        "options.py: click.echo(ctx.get_help(), err=True)",
        "pipelines.py: sys.stderr.write(NO_FILE_YET + '\\n')",
        "terminal.py: print(escaped(line), file=out, flush=True)",
        "top.py: Console()",  # `top_text` escapes what comes from the log
        "top.py: Console(width=shutil.get_terminal_size((120, 0)).columns, color_system=None)",
        "top.py: console.print(top_text.frame(status, alerts, top_text.TopView(), time.time()))",
        (
            "zygote.py: sys.stderr.write('no cgroup can be made and the user is root: nothing limits a spider that "
            "forks endlessly\\n')"
        ),
    ]


@given(st.text() | st.text(alphabet=[*map(chr, CONTROLS), "\ud800", '"', "\\", "a"]))
def test_escaped_json_says_the_same(text: str) -> None:
    """So one function serves text and JSON; what has no control character is not changed."""
    assert harmful(escaped(text)) == set()
    assert escaped(text) == text or not text.isprintable()
    assert json.loads(escaped(json.dumps(text, ensure_ascii=False))) == text


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        yield from _commands(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]


@pytest.mark.parametrize("command", list(_commands(cli)), ids=" ".join)
def test_the_help_of_every_command_fits_80_columns(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its usage is one line: a long list of choices would break the line in the middle of the command's name."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    lines = capfd.readouterr().out.splitlines()
    usage = next(line for line in lines if "Usage" in line)
    assert max(map(len, lines)) <= 80
    assert usage.strip().startswith(" ".join(("Usage: crawlog", *command)))
    assert not next(line for line in lines[lines.index(usage) + 1 :] if line.strip()).startswith(" [")


def test_the_topics_of_a_large_crawl_fit_80_columns() -> None:
    """Ten billion records, a terabyte, and a sink: its group has a line to itself."""
    sink = "crawlog-sink-b176df5a45b4ed30"
    readers = {"urls": "crawlog-fetch", "pages": "crawlog-parse", "items": sink}
    rows = [
        TopicRow(f"crawl.{kind.name}", 1000, kind.key, kind.kept, 10**10, 10**12,
                 {readers[kind.name]: 10**10} if kind.name in readers else {}, 3, 3, {1: 334, 2: 333, 3: 333}, [])
        for kind in TOPIC_KINDS
    ]  # fmt: skip
    lines = topic_lines(rows)
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line] == [
        *("TOPIC", *(f"crawl.{kind.name}" for kind in TOPIC_KINDS)),
        *("TOPIC", *(f"crawl.{kind.name}" for kind in TOPIC_KINDS)),
        *("GROUP", "crawlog-fetch", "crawlog-parse", sink),
    ]
    assert lines[-1].split()[1:] == ["crawl.items", "10,000,000,000"]
