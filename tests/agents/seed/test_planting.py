"""Seeds: which lines are URLs, how they are batched, what is in the log before the first one."""

import gzip
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from crawlog.agents.seed import planting, source
from crawlog.agents.seed.line import Seed, found_on
from crawlog.agents.seed.planting import keep_seeds, kept_seeds, plant, scope_names
from crawlog.agents.seed.source import Source, lines_of
from crawlog.agents.seed.sower import FRAME_BYTES, MAX_NAMES, POLL_EVERY, TOLD, SeedBatch, SeedBatches, Seeded, Sower
from crawlog.cli.arguments import existing_file
from crawlog.jobs import request
from crawlog.jobs.request import JobRequest, LocalParts, job_name
from crawlog.jobs.submit import wanted_of
from crawlog.schemas.control import Finished, JobCopy, Join
from crawlog.schemas.progress import Progress
from crawlog.schemas.requests import CookieGiven, RequestRecord
from crawlog.schemas.urls import (
    MAX_BATCH_BYTES,
    MAX_BATCH_URLS,
    FoundUrl,
    JobSpec,
    RequestRules,
    ScopeSpec,
    UrlsRecord,
    decode,
    encode,
)
from crawlog.streams import job_spec
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.control import job_records
from crawlog.streams.errors import Misconfigured
from crawlog.streams.fetch import back_pressure
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics, partition_count
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.machine import Run
from crawlog.streams.settings.sections import Scope
from crawlog.streams.settings.settings import Settings, known_keys
from crawlog.streams.settings.sources import Sources, resolve
from crawlog.streams.spiders import request_id
from crawlog.streams.url.place import Places

PARTITIONS = 4


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


class FakeProducer:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.records: list[tuple[int | None, bytes | None, UrlsRecord]] = []

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        on_delivery: Callable[[int, int], None] | None = None,
    ) -> None:
        """Decoded: a record must be one that the fold takes; acknowledged at once, at the offset of its number."""
        assert topic == "t.urls"
        self.records.append((partition, key, decode(value)))
        if on_delivery is not None:
            on_delivery(partition or 0, len(self.records) - 1)

    def poll(self) -> int:
        """Nothing comes back."""
        return 0

    def flush(self, _: float) -> bool:
        """All is acknowledged."""
        return True


def sown(lines: bytes, spec: JobSpec | None = None) -> tuple[Seeded, list[FoundUrl], list[str]]:
    """What comes of some lines: the counts, the founds, what the user was told."""
    producer, told = FakeProducer(), list[str]()
    sower = Sower(producer, Topics("t."), PARTITIONS, JobCopy("j", spec or JobSpec()), told.append)  # type: ignore[arg-type]  # as much as is needed, and one of the kinds
    sower.sow("seeds.txt", lines_of(io.BytesIO(lines)))
    seeded = sower.finish()
    return seeded, [found for _, _, record in producer.records for found in record.urls or []], told


def urls(lines: bytes) -> list[str]:
    """The URLs among some lines."""
    return [found.url for found in sown(lines)[1]]


def test_a_text_file_has_a_url_a_line() -> None:
    """Comments, blank lines and line ends of either kind are nobody's URL."""
    assert sorted(urls(b"# seeds\n\nhttp://a.example/\r\n  http://b.example/x \n")) == [
        "http://a.example/",
        "http://b.example/x",
    ]


def test_a_json_line_has_depth_and_priority() -> None:
    """Without further fields it is a plain GET."""
    _, founds, _ = sown(b'{"url": "http://a.example/", "depth": 2, "priority": -3}\n')
    assert founds == [FoundUrl("http://a.example/", depth=2, priority=-3)]


def test_a_json_line_has_times() -> None:
    """A length of time counts from when the line is sent; without further fields the request is a plain GET."""
    before = time.time()
    found = found_on(b'{"url": "http://a.test/", "countdown": "1h", "expires": "2027-01-15T08:00:00"}', str)
    assert before + 3600 <= found.eta <= time.time() + 3600
    assert (found.expires, found.request) == (1.8e9, None)
    for wrong in (b'{"url": "http://a.test/", "eta": "soon"}', b'{"url": "http://a.test/", "eta": 1, "countdown": 1}'):
        with pytest.raises(ValueError, match=r"eta|no time"):
            found_on(wrong, str)


def test_a_json_line_has_a_whole_request() -> None:
    """By the names of the arguments of a spider's request; a header that tells requests apart is in its identity."""
    line = b"""{"url": "http://a.example/x#y", "method": "post", "headers": {"X-Key": "1", "Accept": ["a", "b"]},
        "body": "a=\\u00e4", "cookies": {"c": "1"}, "callback": "parse_form", "errback": "failed", "meta": {"n": [1]},
        "cb_kwargs": {"k": null}, "once": true, "attempts": 2, "timeout": 5, "render": false, "proxy": "http://p.test:1"}
    """.replace(b"\n", b" ")
    spec = JobSpec(fingerprint_headers=("X-Key",))
    _, (found,), told = sown(line, spec)
    request = RequestRecord(
        method="POST", headers=(("X-Key", "1"), ("Accept", "a"), ("Accept", "b")), body="a=ä".encode(),
        cookies=(CookieGiven("c", "1"),), callback="parse_form", errback="failed", meta={"n": [1]}, kwargs={"k": None},
        once=True, attempts=2, timeout_s=5.0, render=False, proxy="http://p.test:1",
    )  # fmt: skip
    assert found.request == request
    assert found.url == "http://a.example/x"
    assert found.id == request_id(found.url, request, ["x-key"]) != request_id(found.url, request)
    assert not told


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        (
            b'{"url": "http://a.example/", "method": "POST", "body": "q=tea"}',
            RequestRecord(method="POST", body=b"q=tea"),
        ),
        (
            b'{"url": "http://a.example/", "method": "POST", "body": "q=tea", "callback": "parse_found"}',
            RequestRecord(method="POST", body=b"q=tea", callback="parse_found"),
        ),
        (b'{"url": "http://a.example/", "render": true}', RequestRecord(render=True)),
        (b'{"url": "http://a.example/", "method": "GET"}', None),
    ],
)
def test_a_line_has_as_much_of_a_request_as_it_wants(line: bytes, request_: RequestRecord | None) -> None:
    """Neither callback nor errback need be there."""
    found = found_on(line, str)
    assert found.request == request_


def test_seeds_of_a_log_keep_their_requests() -> None:
    """`--fresh` and `--from-log` plant them again as they are."""
    seed = Seed("http://a.example/", 1, 2, record=RequestRecord(method="POST", body=b"\xff", unfiltered=True), id=7)
    _, (found,), _ = sown(msgspec.json.encode(seed) + b"\n")
    assert found == FoundUrl("http://a.example/", 1, 2, id=7, request=seed.record)


def test_seeds_are_canonical_by_the_rules_of_the_job() -> None:
    """The job's rules count, not the defaults."""
    spec = JobSpec(canonical=JobSpec().canonical.__class__(drop_params=("s",)))
    _, founds, _ = sown(b"HTTP://A.example:80/x/../y?s=1&utm_source=z#top\n", spec)
    assert [found.url for found in founds] == ["http://a.example/y?utm_source=z"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"a.example/x", "perhaps https://a.example/x"),
        (b"ftp://a.example/", "neither http nor https"),
        (b"http://", "not a URL"),
        (b"http://a.example/\xff", "not UTF-8"),
        (b"http://a.example/ 5", "JSON lines"),
        (b"http://a.example/\t5", "JSON lines"),
        (b"http://a.example/1\rhttp://a.example/2\r", "JSON lines"),
        (b"\0\0", "not a URL"),
        (b'["http://a.example/"]', "not a URL"),
        (b'{"url": "http://a.example/", "priority": 2147483648}', "<= 2147483647"),
        (b'{"url": "http://a.example/", "depth": -1}', ">= 0"),
        (b'{"href": "http://a.example/"}', "unknown field `href`"),
        (b'{"url": "http://a.example/", "title": null}', "unknown field `title`"),
        (b'{"url": "http://a.example/", "headers": {"Host": "b"}}', "the header 'Host' cannot be set"),
        (b'{"depth": 1}', "missing required field `url`"),
        (b'{"url": "http://a.example/"', "truncated"),
        (b'{"url": "http://a.example/", "meta": {"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}}", "nested too deeply"),
        (b"http://a.example/" + b"x" * 70_000, "too long"),
        (b"http://a.example/" + b"x" * 200_000, "too long"),
    ],
)
def test_a_bad_line_is_told_with_its_number_and_the_others_go_on(line: bytes, why: str) -> None:
    """Nothing is dropped in silence, and nothing stops for it."""
    seeded, founds, told = sown(b"http://a.example/1\n" + line + b"\nhttp://a.example/3\n")
    assert (seeded.count, seeded.bad, len(founds)) == (2, 1, 2)
    assert len(told) == 1
    assert told[0].startswith("seeds.txt:2: ")
    assert why in told[0]


def test_a_login_in_a_url_is_left_out_of_the_log() -> None:
    """Whoever reads a crawl's records would have it; an @ elsewhere is part of the URL."""
    lines = b'http://me:p%40ss@a.example/1\nhttp://a.example/@me\n{"url": "http://me@a.example/3", "depth": 2}\n'
    _, founds, told = sown(lines)
    assert [(found.url, found.depth) for found in founds] == [
        ("http://a.example/1", 0), ("http://a.example/@me", 0), ("http://a.example/3", 2),
    ]  # fmt: skip
    assert len(told) == 2
    assert told[0].startswith("seeds.txt:1: the login in this URL is left out")
    assert not any("p%40ss" in line for line in told)


def test_seeds_that_come_by_a_pipe_name_the_job_and_are_still_there(tmp_path: Path) -> None:
    """`run --seeds <(…)`: read once, for the name and for the crawl; the same URLs in a file are the same job."""
    file = tmp_path / "seeds.txt"
    file.write_bytes(b"http://f.example/\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"http://f.example/\n",))
    writer.start()
    with ExitStack() as opened:
        wanted, same = (
            wanted_of(Settings(), JobRequest(), LocalParts((str(existing_file(one, "--seeds")),)), print, opened)
            for one in (pipe, file)
        )
        assert wanted.name == same.name == job_name(["http://f.example/"])
        writer.join()
        assert wanted.source is not None
        assert [line.strip() for _, part in wanted.source.parts() for line in part] == [b"http://f.example/"]


def test_a_byte_order_mark_is_no_part_of_the_first_url() -> None:
    """Editors on Windows write one."""
    assert urls(b"\xef\xbb\xbfhttp://a.example/\n") == ["http://a.example/"]


def test_many_bad_lines_are_counted() -> None:
    """A terminal is not flooded, and the sum is right."""
    seeded, _, told = sown(b"nonsense\n" * 1000)
    assert seeded.bad == 1000
    assert len(told) == TOLD + 1
    assert told[-1] == "980 more lines are no URLs"


def test_the_names_of_the_scope_are_told() -> None:
    """By the kind of the job's scope."""
    lines = b"http://www.a.example/\nhttps://www.a.example/\nhttp://x.a.example:8080/\n"
    assert sown(lines)[0].names == {"a.example"}
    assert sown(lines, JobSpec(scope=ScopeSpec(kind="host")))[0].names == {"www.a.example", "x.a.example:8080"}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20_000)), max_size=60))
def test_batches_hold_every_url_once_in_order(sizes: list[tuple[int, int]]) -> None:
    """Of one partition each, within the limits, keyed by the domain that all share."""
    founds = [FoundUrl(f"http://h{host}.example{host}/{n}-" + "x" * size) for n, (host, size) in enumerate(sizes)]
    gathered: list[SeedBatch] = []
    batches, place = SeedBatches(), Places(PARTITIONS).of
    for found in founds:
        full = batches.add(found, place(found.url))
        gathered += [full] if full else []
    gathered += batches.rest()
    for batch in gathered:
        domains = {place(found.url).domain for found in batch.urls}
        assert {place(found.url).partition for found in batch.urls} == {batch.partition}
        assert batch.key == (domains.pop().encode() if len(domains) == 1 else None)
        assert sum(len(found.url) + FRAME_BYTES for found in batch.urls) <= MAX_BATCH_BYTES
    for partition in range(PARTITIONS):
        sent = [found for batch in gathered if batch.partition == partition for found in batch.urls]
        assert sent == [found for found in founds if place(found.url).partition == partition]


def test_a_batch_ends_at_its_largest_number() -> None:
    """500 URLs leave at once; nothing waits for a 501st."""
    batches, at = SeedBatches(), Places(1).of("http://a.example/")
    full = [batches.add(FoundUrl(f"http://a.example/{n}"), at) for n in range(MAX_BATCH_URLS)]
    assert full[:-1] == [None] * (MAX_BATCH_URLS - 1)
    assert full[-1] is not None
    assert len(full[-1].urls) == MAX_BATCH_URLS
    assert list(batches.rest()) == []


def test_a_source_is_read_twice(tmp_path: Path) -> None:
    """Standard input too: names first, then the URLs."""
    file = tmp_path / "seeds.txt"
    file.write_bytes(b"http://f.example/\n")
    with Source(["http://u.example/", str(file), "-"], io.BytesIO(b"http://s.example/\n")) as source:
        for _ in range(2):
            lines = [line.strip() for _, part in source.parts() for line in part]
            assert lines == [b"http://u.example/", b"http://f.example/", b"http://s.example/"]


def test_an_argument_that_is_no_utf_8_is_a_bad_line() -> None:
    """As it is in a file."""
    with Source(["http://a.example/", "http://a.example/\udcff"]) as source:
        assert [line for _, part in source.parts() for line in part] == [b"http://a.example/", b"http://a.example/\xff"]


def test_an_example_of_the_seeds_is_the_first_url_among_them(tmp_path: Path) -> None:
    """Hints name it, so it is without a login; a file may begin with anything."""
    file = tmp_path / "seeds.txt"
    file.write_bytes(b'# mine\n\nnonsense\n{"url": "http://me:pw@b.example/x"}\nhttp://c.example/\n')
    with ExitStack() as opened:
        for request, seeds, example in (
            (JobRequest(), (str(file),), "http://b.example/x"),
            (JobRequest(urls=("http://a.example/",)), ("http://a.example/", str(file)), "http://a.example/"),
            (JobRequest(job="j"), (), ""),
        ):
            assert wanted_of(Settings(), request, LocalParts(seeds), print, opened).example == example


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_a_pipe_is_read_twice_too(tmp_path: Path, packed: Callable[[bytes], bytes]) -> None:
    """As shells make them for `<(…)`; /dev/stdin may be one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(packed(b"\xef\xbb\xbfhttp://f.example/\r\n"),))
    writer.start()
    with Source([str(pipe)]) as source:
        writer.join()
        for _ in range(2):
            told = [(name, line.strip()) for name, part in source.parts() for line in part]
            assert told == [(str(pipe), b"http://f.example/")]


@pytest.mark.parametrize("argument", ["-", "pipe"])
def test_a_pipe_that_stays_open_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str) -> None:
    """As `tail -f urls.txt | crawlog seed -`: nothing would be sent, without a word."""
    monkeypatch.setattr(source, "OPEN_S", 0.05)
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    told, may_end = list[str](), threading.Event()

    def say(line: str) -> None:
        told.append(line)
        may_end.set()

    def write() -> None:
        with Path("pipe").open("wb") as pipe:
            pipe.write(b"http://f.example/\n")
            may_end.wait(60)

    writer = threading.Thread(target=write)
    writer.start()
    stdin = Path("pipe").open("rb") if argument == "-" else None  # noqa: SIM115  # closed with the pipe
    with stdin or nullcontext(), Source([argument], stdin, say=say) as seeds:
        writer.join()
        assert seeds.first() == "http://f.example/"
    name = "standard input" if argument == "-" else "pipe"
    assert [line.partition(":")[0] for line in told] == [f"{name} is open still"]


@pytest.mark.broker
def test_who_is_interrupted_is_told_what_to_do(cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """URLs that are known already change nothing."""
    told = list[str]()
    ensure_topics(cluster)

    def interrupted(*_: object) -> Seeded:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sower, "finish", interrupted)
    with Source(["http://a.example/", "http://b.example/"]) as source, pytest.raises(KeyboardInterrupt):
        plant(cluster, Producer(cluster, "test"), "interrupted", source, report=told.append)
    assert told == ["interrupted: 2 URLs are read, some not sent; the same command again adds what is missing"]


@pytest.mark.parametrize("kind", ["domain", "host", "any"])
def test_names_are_those_that_sowing_sees(kind: str) -> None:
    """The first reading looks at origins only, and agrees with the second."""
    lines = [
        b"http://www.a.example?x=/1",
        b"http://www.a.example#/",
        b"HTTP://WWW.B.example:80/x",
        b"https://user:pw@c.example:8443/",
        b"http://d.example\\x",
        b"http:/e.example/x/y",
        b"http:f.example",
        "http://\u00fc.example/\u00fc".encode(),
        b'{"url": "http://g.example"}',
        b'{"url": "  http://i.example/x "}',
        b'{"url": "    http://l.example/x"}',
        b"https:///j.example/x",
        b"http:////k.example/x",
        b"nonsense",
        b"http://[::1]:8080/x",
    ]
    seeded, _, _ = sown(b"\n".join(lines), JobSpec(scope=ScopeSpec(kind=kind)))  # type: ignore[arg-type]  # as much as is needed, and one of the kinds
    with Source(["-"], io.BytesIO(b"\n".join(lines))) as source:
        assert scope_names(source, kind) == seeded.names


def test_only_bad_lines_are_an_error_that_says_why() -> None:
    """And nothing has been written then."""
    wanted = r"no URL in -: standard input:2: .*perhaps https://a\.example"
    with Source(["-"], io.BytesIO(b"# all bad\na.example\n")) as source, pytest.raises(Misconfigured, match=wanted):
        scope_names(source, "domain")


@pytest.mark.parametrize("argument", ["missing.txt", "."])
def test_a_file_that_cannot_be_read_is_an_error_at_once(argument: str) -> None:
    """The message names it and says what a URL looks like where that may be meant."""
    with pytest.raises(Misconfigured, match="cannot read seeds"):
        Source([argument])


def test_a_million_lines_take_seconds() -> None:
    """At least 100,000 URLs a second with both readings; here with room for a slow and busy machine."""
    lines = b"".join(b"http://www.h%d.example/dir/page-%d.html?id=%d\n" % (n % 2000, n, n) for n in range(50_000))
    with Source(["-"], io.BytesIO(lines)) as source:
        started_at = time.thread_time()
        scope_names(source, "domain")
        sown(lines)
    assert time.thread_time() - started_at < 50_000 * 100e-6


def test_the_name_of_a_job_is_that_of_its_seeds() -> None:
    """In any order; another spider is another job."""
    assert job_name(["http://b/", "http://a/"]) == job_name(["http://a/", "http://b/", "http://a/"])
    assert job_name(["http://a/"]) != job_name(["http://a/"], "x.py:X")


def test_the_seeds_of_a_deleted_job_of_the_name_are_not_kept() -> None:
    """Neither those before the deletion nor late ones; the next job may have one of them too."""
    deletion, bare = (
        encode(UrlsRecord("j", 1, spec=JobSpec(5, state="deleted"))),
        b'{"job": "j", "url": "http://%s.test/"}',
    )

    def seed(url: str, epoch: int) -> bytes:
        return encode(UrlsRecord("j", epoch, urls=[FoundUrl(url, source="seed")]))

    old = [seed("http://a.test/", 0), seed("http://b.test/", 1), bare % b"c"]
    log = [*old, deletion, seed("http://d.test/", 1), seed("http://b.test/", 2), bare % b"e", deletion, b"garbage"]
    file = io.BytesIO(b"before\n")
    file.seek(0, io.SEEK_END)
    names = keep_seeds(log, "j", file, set())
    lines = file.getvalue().splitlines()
    assert lines[0] == b"before"
    assert [msgspec.json.decode(line)["url"] for line in lines[1:]] == ["http://b.test/", "http://e.test/"]
    assert len(names) == 2
    assert keep_seeds(log, "j", file, names) == set()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The records of a log of one partition: creation and deletion of job `j` at offsets 2 and 4, seeds around them."""
    seeds = [encode(UrlsRecord(job, 0, urls=[FoundUrl(f"http://{job}.test/", source="seed")])) for job in "ij"]
    deletion = encode(UrlsRecord("j", 1, spec=JobSpec(2, state="deleted")))
    again = encode(UrlsRecord("j", 2, urls=[FoundUrl("http://j.test/", source="seed")]))
    log = [seeds[0], seeds[0], encode(UrlsRecord("j", 0, spec=JobSpec(1))), seeds[1], deletion, again, seeds[0]]
    monkeypatch.setattr(planting, "partition_count_if_any", lambda _: 1)

    def read(_: object, _topic: str, _partition: int, start: int, end: int) -> Iterator[Any]:
        yield from (SimpleNamespace(value=lambda value=value: value) for value in log[start:end])

    monkeypatch.setattr(planting, "read_records", read)
    return log


@pytest.mark.parametrize(
    ("job", "low", "is_whole"), [("i", 0, True), ("i", 1, False), ("j", 2, True), ("j", 3, True), ("j", 5, False)]
)
def test_seeds_are_kept_unless_a_trimmed_log_may_have_lost_some(
    job: str, low: int, is_whole: bool, stored: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was created after the part that is gone has all of them, and one that has a deleted job's name."""
    monkeypatch.setattr(planting, "log_bounds", lambda *_: {0: (low, len(stored))})
    expected = (
        nullcontext() if is_whole else pytest.raises(Misconfigured, match=rf"begins at offset {low}: .* job {job} ")
    )
    with expected, kept_seeds(Settings(), Topics(""), job) as seeds:
        assert [msgspec.json.decode(line)["url"] for line in seeds.path.read_bytes().splitlines()] == [
            f"http://{job}.test/"
        ]


def test_seeds_that_come_while_they_are_read_are_kept_too(stored: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once."""
    monkeypatch.setattr(planting, "log_bounds", lambda *_: {0: (2, len(stored))})
    with kept_seeds(Settings(), Topics(""), "j") as seeds:
        stored += [stored[5], encode(UrlsRecord("j", 2, urls=[FoundUrl("http://late.test/", source="seed")]))]
        seeds.read_on()
        urls = [msgspec.json.decode(line)["url"] for line in seeds.path.read_bytes().splitlines()]
    assert urls == ["http://j.test/", "http://late.test/"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3)))
def test_the_name_of_many_seeds_is_made_outside_memory_and_is_the_same(seeds: list[str]) -> None:
    """A known job is found again by the name that it had."""
    whole = "\n".join([*sorted({seed.strip() for seed in seeds}), "s.py:S", "a=1", "b=2"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "CHUNK", 3)
        assert (
            job_name(seeds, "s.py:S", [("b", "2"), ("a", "1")])
            == "job-" + xxhash.xxh3_64_hexdigest(whole.encode())[:10]
        )


def test_a_spec_is_resolved_from_the_settings() -> None:
    """The fold never reads a worker's settings, so all of them are in the record."""
    settings = Settings(scope=Scope(kind="host", exclude=("x",)), run=Run(depth=3))
    spec = job_spec.resolve_spec(settings, job_spec.JobSpider("s.py:S"), ["b", "a", "b"])
    assert (spec.scope.kind, spec.scope.names, spec.scope.exclude) == ("host", ("a", "b"), ("x",))
    assert (spec.max_depth, spec.spider, spec.max_redirects) == (3, "s.py:S", settings.scope.max_redirects)


def _found_urls(settings: Settings) -> list[UrlsRecord]:
    topic = Topics(settings.kafka.prefix).urls
    ends = log_bounds(settings, topic, list(range(partition_count(settings))))
    return [
        decode(record.value())
        for at, (start, end) in ends.items()
        for record in read_records(settings, topic, at, start, end)
    ]


@pytest.mark.broker
@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        ({}, ""),
        ({"run.depth": "3"}, ""),
        ({"fetch.concurrency": "9"}, ""),
        ({"politeness.delay_s": "1"}, ""),
        ({"politeness.delay_s": "9"}, "its own politeness.delay_s: `crawlog run URL… --job j` changes them"),
        ({"run.depth": "4", "scope": "any"}, "its own run.depth, scope.kind: `crawlog run URL… --job j` changes them"),
        ({"links.nofollow": "follow", "traps.hosts": "7"}, "its own links.nofollow, traps.hosts: `"),
        ({"dedup.mode": "bloom"}, "its own dedup.mode: dedup.mode cannot change"),
        ({"dedup.mode": "bloom", "render": "auto"}, "dedup.mode cannot change; `crawlog run"),
    ],
)
def test_what_a_job_keeps_against_a_command_is_told(pairs: dict[str, str], told: str) -> None:
    """Of what was given for this command alone; defaults say nothing, nor what the job has so already."""
    job = resolve(Sources(flags={"run.depth": 3, "links.nofollow": "skip", "scope": "host"}, environ={})).settings
    line = job_spec.kept_settings(
        "j", job_spec.resolve_spec(job, names=["a.test"]), resolve(Sources(flags=pairs, environ={})).settings
    )
    assert told in line
    assert bool(line) == bool(told)


def test_a_seeder_says_of_requests_what_it_was_given() -> None:
    """And leaves the rest to the workers, which it does not bring; of a known job, what that keeps is told."""
    given = resolve(Sources(pairs=["politeness.delay_s=1.0", "robots.obey=true"], environ={})).settings
    said = job_spec.said_rules(given)
    assert said == RequestRules(delay_s=1.0, robots=True)
    spec = job_spec.resolve_spec(Settings(), requests=job_spec.said_rules(Settings()))
    assert spec.requests == RequestRules()
    assert "its own politeness.delay_s, robots.obey" in job_spec.kept_settings("j", spec, given, said)
    assert job_spec.kept_settings("j", spec, given) == "", (
        "a command with workers has its way with what the record does not say"
    )


def test_every_field_of_a_job_is_a_setting_of_that_name() -> None:
    """What is told of a job by its settings leaves none out."""
    known = job_spec.job_values(JobSpec(requests=job_spec.request_rules(Settings()))).keys()
    assert known - known_keys() == {"scope.names"}
    groups = {name for name in JobSpec.__struct_fields__ if isinstance(getattr(JobSpec(), name), msgspec.Struct)}
    marked = job_spec.setting_of(JobSpec)
    of_submission = {"reason", "by", "at", "changed_at", "outputs", "items", "code", "priority", "parse_again"}
    others = {
        "rev",
        "spider",
        "args",
        "scrapy",
        "starts",
        "pipelines",
        "state",
        "requests",
        "fed",
        "every",
        "flow",
    } | of_submission
    assert set(JobSpec.__struct_fields__) - marked.keys() - groups == others
    of_requests = job_spec.setting_of(RequestRules)
    assert of_requests.keys() == set(RequestRules.__struct_fields__)
    assert {setting.key for setting in (*marked.values(), *of_requests.values())} <= known


def test_seeds_go_at_the_pace_of_the_workers_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of seeds is never much further than the folds: dones in the log do not wait behind all of it."""
    monkeypatch.setattr(back_pressure, "MOST_SOWN", 5_000)
    producer, folded, ahead = FakeProducer(), [0], list[int]()

    def look(wait_s: float) -> list[Progress]:
        ahead.append(len(producer.records) - folded[0])
        folded[0] += wait_s > 0  # the folds take a record in each wait
        return [Progress("w", "fetch", partition, 0.0, folded[0]) for partition in range(PARTITIONS)]

    sower = Sower(producer, Topics("t."), PARTITIONS, JobCopy("j", JobSpec()), pytest.fail, look)  # type: ignore[arg-type]  # as much as is needed, and one of the kinds
    sower.sow("seeds.txt", (b"http://n%d.test/%d" % (n % 50, n) for n in range(50_000)))
    assert sower.finish().count == 50_000
    assert sum(len(record.urls or ()) for _, _, record in producer.records) == 50_000
    assert folded[0] >= 100 - 10 - POLL_EVERY - PARTITIONS
    assert max(ahead) <= 10 + POLL_EVERY + PARTITIONS


def test_a_broker_that_dies_at_the_end_is_looked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look restarts it: without one the last acknowledgements never come."""
    producer, looks = FakeProducer(), list[float]()
    monkeypatch.setattr(producer, "flush", lambda _: bool(looks))

    def look(wait_s: float) -> list[Progress]:
        looks.append(wait_s)
        return []

    sower = Sower(producer, Topics("t."), PARTITIONS, JobCopy("j", JobSpec()), pytest.fail, look)  # type: ignore[arg-type]  # as much as is needed, and one of the kinds
    sower.sow("seeds.txt", [b"http://a.test/"])
    assert sower.finish().count == 1
    assert len(looks) == 1


@pytest.mark.broker
def test_a_job_is_on_record_everywhere_before_its_first_seed(cluster: Settings) -> None:
    """Each partition begins with it, and crawl.control knows it."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    assert job_records.known_job(cluster, topics, "j") is None
    plant(cluster, producer, "j", Source(["http://a.example/", "http://b.test/"]), report=pytest.fail)
    copy = job_records.known_job(cluster, topics, "j")
    assert copy is not None
    assert copy.spec.scope.names == ("a.example", "b.test")
    for at, (start, end) in log_bounds(cluster, topics.urls, list(range(partition_count(cluster)))).items():
        first = next(read_records(cluster, topics.urls, at, start, end))
        assert decode(first.value()).spec == copy.spec


@pytest.mark.broker
def test_new_seeds_of_a_known_job_let_their_names_join(cluster: Settings) -> None:
    """The record stays as it is; parse hears the new names from crawl.control."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    for url in ("http://a.example/", "http://b.test/", "http://a.example/2"):
        plant(cluster, producer, "j", Source([url]), report=pytest.fail)
    assert sorted(job_records.read_control(cluster, topics, joins=True).records) == [
        b"job/j",
        b"join/j/b.test",
        b"layout",
    ]
    founds = [found.url for record in _found_urls(cluster) for found in record.urls or []]
    assert sorted(founds) == ["http://a.example/", "http://a.example/2", "http://b.test/"]


@pytest.mark.broker
def test_a_finished_job_is_known_as_such_until_its_next_epoch(cluster: Settings) -> None:
    """`--fresh` begins an epoch, and the job is not finished any more."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    copy = job_records.write_job(cluster, producer, topics, "j", JobSpec())
    assert job_records.read_control(cluster, topics).end("j") is None
    job_records.write_finished(producer, topics, Finished("j", at=1.0))
    assert job_records.read_control(cluster, topics).end("j") == Finished("j", at=1.0)
    job_records.write_job(cluster, producer, topics, "j", copy.spec, epoch=1)
    assert job_records.read_control(cluster, topics).end("j") is None


@pytest.mark.broker
def test_the_names_of_many_seeds_join_a_job_in_few_records(cluster: Settings) -> None:
    """Every command and each parse worker reads all of them; a name that joined does not join again."""
    ensure_topics(cluster)
    topics, producer = Topics(cluster.kafka.prefix), Producer(cluster, "test")
    job_records.write_job(cluster, producer, topics, "j", JobSpec(scope=ScopeSpec(names=("n0.test",))))
    for count in (2_500, 2_501, 2_501):
        with Source([f"http://n{number}.test/" for number in range(count)]) as source:
            plant(cluster, producer, "j", source, report=pytest.fail)
    joins = job_records.read_control(cluster, topics, joins=True).of(Join)
    assert [len(entry.names) for entry in joins] == [1_000, 1_000, 499, 1]
    assert {name for entry in joins for name in entry.names} == {f"n{number}.test" for number in range(1, 2_501)}


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["domain", "host"])
def test_each_of_many_names_stands_in_one_partition_before_the_seeds(cluster: Settings, kind: str) -> None:
    """Each partition would have all of them with each revision, and every fold and parse worker would hold them."""
    ensure_topics(cluster)
    settings = cluster.model_copy(update={"scope": cluster.scope.model_copy(update={"kind": kind})})
    topics, count = Topics(settings.kafka.prefix), partition_count(settings)
    with Source([f"http://www.n{number}.test/" for number in range(MAX_NAMES + 500)]) as source:
        plant(settings, Producer(settings, "test"), "j", source, report=pytest.fail)
    copy = job_records.known_job(settings, topics, "j")
    assert copy is not None
    listed, place, joined = set(copy.spec.scope.names), Places(count).of, set[str]()
    assert len(listed) == MAX_NAMES
    for at, (start, end) in log_bounds(settings, topics.urls, list(range(count))).items():
        kinds = []
        for record in read_records(settings, topics.urls, at, start, end):
            said = decode(record.value())
            assert all(place(f"http://{name}/").partition == at for name in said.joins or ())
            joined.update(said.joins or ())
            kinds.append("joins" if said.joins else "seeds" if said.urls else "job")
        assert kinds == sorted(kinds, key=["job", "joins", "seeds"].index)
    www = "www." if kind == "host" else ""
    assert listed | joined == {f"{www}n{number}.test" for number in range(MAX_NAMES + 500)}
    assert not listed & joined
