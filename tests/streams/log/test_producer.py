"""The producer, on librdkafka's own mock cluster: what arrives, what is said, what it costs."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from crawlog.schemas.dead import FIELDS, DeadLetter, by_name, from_headers
from crawlog.streams.cluster.client import aiokafka_credentials, consumer_config, kafka_config
from crawlog.streams.errors import AccessDenied, EngineError, GiveUp, Misconfigured
from crawlog.streams.log import producer as producing
from crawlog.streams.log.producer import CommandProducer, Producer, send_letter
from crawlog.streams.log.read import read_records, record_headers
from crawlog.streams.settings.machine import Kafka
from crawlog.streams.settings.settings import Settings
from tests.support.any_records import RawName, Seed, send

MOCK: dict[str, object] = {"test.mock.num.brokers": 1}
SETTINGS = Settings(kafka=Kafka(bootstrap="mock:9092"))
SMALL = Kafka(bootstrap="mock:9092", max_record_bytes=1 << 20)


def mocked(linger_ms: int = 0, on_fatal: Callable[[str], None] | None = None, **extra: object) -> Producer:
    """A producer with a cluster of its own; topics have four partitions."""
    dotted = {name.replace("_", "."): value for name, value in extra.items()}
    return Producer(SETTINGS, "test", linger_ms=linger_ms, on_fatal=on_fatal, extra=MOCK | dotted)


def address(producer: Producer) -> str:
    """Where the mock cluster of this producer listens."""
    return str(next(iter(producer._librdkafka.list_topics().brokers.values()))).split("/")[0]


def read_one(producer: Producer, topic: str, partition: int) -> Message:
    """The first record of a partition."""
    settings = Settings(kafka=Kafka(bootstrap=address(producer)))
    consumer = Consumer(consumer_config(settings))
    consumer.assign([TopicPartition(topic, partition, 0)])
    record = consumer.poll(10)
    consumer.close()
    assert record is not None
    assert record.error() is None
    return record


def test_a_callback_gets_partition_and_offset() -> None:
    """An acknowledged record says where it is."""
    producer = mocked()
    at: list[tuple[int, int]] = []
    for _ in range(3):
        producer.send("t", b"x", partition=2, on_delivery=lambda *where: at.append(where))
    assert producer.flush(10)
    assert at == [(2, 0), (2, 1), (2, 2)]


def test_value_key_and_headers_arrive_as_they_were_sent() -> None:
    """Nothing is added to a record."""
    producer = mocked()
    producer.send("t", b"body", key=b"k", partition=1, headers=[("crawlog", b"{}")])
    producer.flush(10)
    record = read_one(producer, "t", 1)
    assert (record.value(), record.key(), record.headers()) == (b"body", b"k", [("crawlog", b"{}")])


def test_a_header_without_a_value_is_sent_so() -> None:
    """Any client may write one: where its page was buried, the producer ended parse, and each next one."""
    producer = mocked()
    producer.send("t", b"x", partition=0, headers=[("crawlog", None)])
    producer.flush(10)
    assert read_one(producer, "t", 0).headers() == [("crawlog", None)]


def test_headers_whose_names_are_not_utf_8_are_none() -> None:
    """Thirty records: the list that the client gives ended the process (SIGSEGV) once Python had optimized the call."""
    producer = mocked()
    settings = Settings(kafka=Kafka(bootstrap=address(producer)))
    odd = Seed(b"k", b"v", [("crawlog", None), (RawName(b"\xff\xfe"), b"x"), (RawName(b"\xc3("), b"x")])
    send(settings, [("t", 0, odd)] * 30)
    told = [(record_headers(record), record_headers(record)) for record in read_records(settings, "t", 0, 0, 30)]
    assert told == [([], [])] * 30


@pytest.mark.parametrize(
    ("key", "value", "own", "kept"),
    [
        (b"k", b"v", [("crawlog", b"{}"), ("x", None)], (b"k", b"v", 2)),
        (b"k", bytes(1 << 20), [("crawlog", b"{}")], (b"k", None, 1)),
        (b"k", None, [("n", b"")] * 100_000, (None, None, 0)),
        (bytes(1 << 20), b"v", [], (None, None, 0)),
    ],
    ids=["small", "value", "headers", "key"],
)
def test_a_dead_letter_is_sent_with_as_much_of_its_record_as_there_is_room_for(
    key: bytes, value: bytes | None, own: list[tuple[str, bytes | None]], kept: tuple[bytes | None, bytes | None, int]
) -> None:
    """At least with its place: no record is too large to be buried."""
    producer = Producer(SETTINGS.model_copy(update={"kafka": SMALL}), "test", extra=MOCK)
    letter = DeadLetter("crawl.pages", 1, 2, "parse", "e" * 100_000, key, value, job="j" * 100_000)
    send_letter(producer.send, "t", letter, own)
    assert producer.flush(10)
    record = read_one(producer, "t", 0)
    headers = record_headers(record)
    assert (record.key(), record.value(), len(headers) - len(FIELDS)) == kept
    assert from_headers(by_name(headers), None, None).offset == 2


def test_a_tombstone_has_no_value() -> None:
    """None is not the empty value."""
    producer = mocked()
    producer.send("t", None, key=b"k", partition=0)
    producer.flush(10)
    assert read_one(producer, "t", 0).value() is None


@pytest.mark.parametrize("part", ["value", "key", "header"])
def test_a_record_over_the_limit_is_refused_before_it_is_sent(part: str) -> None:
    """Too large is the caller's to handle, whatever part of the record is."""
    producer = mocked()
    large = b"x" * SETTINGS.kafka.max_record_bytes
    send = {
        "value": partial(producer.send, "t", large, partition=0),
        "key": partial(producer.send, "t", b"", key=large, partition=0),
        "header": partial(producer.send, "t", b"", partition=0, headers=[("crawlog", large)]),
    }[part]
    with pytest.raises(GiveUp, match="too_large"):
        send()
    assert producer.outstanding == 0


def test_the_largest_record_is_delivered() -> None:
    """What `send` takes, the broker takes: the batch's own header has its room."""
    producer = mocked()
    producer.send("t", b"x" * (SETTINGS.kafka.max_record_bytes - producing.ENVELOPE_BYTES), partition=0)
    assert producer.flush(30)


def test_a_full_queue_makes_send_wait() -> None:
    """More than the queue holds goes through, in order."""
    producer = mocked(queue_buffering_max_messages=10)
    offsets: list[int] = []
    for _ in range(500):
        producer.send("t", b"x", partition=0, on_delivery=lambda _, offset: offsets.append(offset))
    assert producer.flush(10)
    assert offsets == list(range(500))


def test_outstanding_counts_what_is_not_acknowledged() -> None:
    """The count falls with the callbacks."""
    producer = mocked()
    producer.send("t", b"x", partition=0)
    assert producer.outstanding == 1
    producer.flush(10)
    assert producer.outstanding == 0


def test_flush_says_when_the_broker_is_silent() -> None:
    """An unreachable broker is a False in time, not an exception and not a lost record."""
    producer = Producer(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")), "test")
    producer.send("t", b"x", partition=0)
    assert not producer.flush(0.2)
    assert producer.outstanding == 1


def test_a_record_given_up_is_fatal() -> None:
    """There is no timeout, so a failed delivery means that the producer is broken."""
    reasons: list[str] = []
    producer = Producer(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")), "test", on_fatal=reasons.append)
    producer.send("t", b"x", partition=0, on_delivery=lambda *_: reasons.append("delivered"))
    producer._librdkafka.purge()
    producer.flush(5)
    assert len(reasons) == 1
    assert "given up" in reasons[0]


def test_a_fatal_error_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default nobody has to handle it: exit code 74, which is no bug at a record."""
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    mocked()._error(KafkaError(KafkaError._FATAL, "test", True))
    assert codes == [74]


def test_access_that_is_denied_for_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where something is acknowledged meanwhile, as by another broker, nor where nothing waits to be written."""
    told: list[AccessDenied] = []
    producer = Producer(SETTINGS, "test", linger_ms=0, on_denied=told.append, extra=MOCK)
    no = KafkaError(KafkaError._AUTHENTICATION, "Authentication failed")
    producer.send("t", b"x", partition=0)
    producer._error(no)
    assert producer.flush(10)
    monkeypatch.setattr(producing, "DENIED_S", 0.0)
    producer.poll()
    producer._error(no)
    producer.poll()
    assert not told
    producer.send("t", b"x", partition=0)
    producer._error(no)
    producer.poll()
    assert "mock:9092 (PLAINTEXT) denies access: Authentication failed" in str(told[0])


def test_a_record_that_may_not_be_written_is_told_at_once() -> None:
    """It is given up by librdkafka, so the worker cannot go on; no bug of it."""
    told: list[AccessDenied] = []
    producer = Producer(SETTINGS, "test", on_denied=told.append, extra=MOCK)
    producer._outstanding = 1
    producer._delivered(None, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), Message("crawl.pages"))
    assert "denies access: crawl.pages: " in str(told[0])


def test_an_error_that_passes_is_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tries again by itself."""
    monkeypatch.setattr("os._exit", pytest.fail)
    producer = mocked()
    producer._error(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    producer._error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))


async def test_run_serves_acknowledgements() -> None:
    """With `run` beside it an agent only awaits."""
    producer, stop = mocked(), asyncio.Event()
    serving = asyncio.create_task(producer.run(stop))
    acknowledged: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    producer.send("t", b"x", partition=0, on_delivery=lambda _, offset: acknowledged.set_result(offset))
    assert await asyncio.wait_for(acknowledged, 60) == 0
    stop.set()
    await asyncio.wait_for(serving, 30)


async def test_run_costs_nothing_while_idle() -> None:
    """Without anything outstanding it polls at most once a second."""
    producer, stop, polls = mocked(), asyncio.Event(), 0

    def counted(timeout: float = 0) -> int:
        nonlocal polls
        polls += 1
        return 0

    producer._poll = counted
    serving = asyncio.create_task(producer.run(stop))
    await asyncio.sleep(0.3)
    assert polls == 0
    stop.set()
    await serving


def test_no_cluster_is_a_clear_error() -> None:
    """The message says what to do."""
    with pytest.raises(Misconfigured, match="crawlog up"):
        kafka_config(Settings())


def test_credentials_reach_both_clients() -> None:
    """SASL is written once, in the settings."""
    sasl = Kafka(
        bootstrap="k:9092",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="me",
        sasl_password="secret",
    )
    confluent = kafka_config(Settings(kafka=sasl))
    faust = aiokafka_credentials(Settings(kafka=sasl))
    assert (confluent["sasl.username"], confluent["sasl.mechanism"]) == ("me", "SCRAM-SHA-512")
    assert (faust.username, faust.password, faust.mechanism.value) == ("me", "secret", "SCRAM-SHA-512")


@pytest.mark.parametrize("given", [{}, {"sasl_username": "me"}, {"sasl_password": "secret"}])
def test_a_login_that_is_not_whole_is_a_clear_error(given: dict[str, str]) -> None:
    """The error of librdkafka was taken for a bug of crawlog."""
    kafka = Kafka(bootstrap="k:9092", security_protocol="SASL_PLAINTEXT", **given)  # type: ignore[arg-type]  # texts
    with pytest.raises(Misconfigured, match="CRAWLOG_KAFKA__SASL_PASSWORD"):
        kafka_config(Settings(kafka=kafka))


def test_a_bad_certificate_is_a_clear_error(tmp_path: object) -> None:
    """The file is named before any connection is tried."""
    kafka = Kafka(bootstrap="k:9092", security_protocol="SSL", ssl_ca="/nonexistent.pem")  # type: ignore[arg-type]  # pydantic makes it a Path
    with pytest.raises(Misconfigured, match="ssl_ca"):
        aiokafka_credentials(Settings(kafka=kafka))


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied), (KafkaError.INVALID_RECORD, EngineError)],
)
def test_a_command_whose_record_is_refused_ends_no_process(
    code: int, error: type[EngineError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service runs many of them in its threads; `flush` tells it to the one that sent the record."""
    monkeypatch.setattr("os._exit", pytest.fail)
    producer = CommandProducer(SETTINGS, "test")
    producer._outstanding = 1
    producer._delivered(None, KafkaError(code), Message("crawl.control"))
    for wait in (partial(producer.flush, 1), producer.poll):
        with pytest.raises(error, match=r"crawl\.control"):
            wait()


def test_a_command_says_that_it_waits_for_acknowledgements() -> None:
    """Once each while in which none came; a cluster that takes no record would else look like a command that hangs."""
    clock, told = [100.0], list[str]()
    producer = CommandProducer(SETTINGS, "test", say=told.append)
    for outstanding, step_s in ((3, 0.0), (3, 9.0), (2, 2.0), (2, 9.0), (2, 2.0), (2, 9.0), (0, 2.0), (2, 60.0)):
        clock[0] += step_s
        producer._outstanding = outstanding
        producer._tell_waiting(clock[0])
    producer._outstanding = 0
    assert [text.split(";")[0] for text in told] == ["waiting for Kafka: 2 records are not acknowledged yet"]
    assert "`crawlog doctor`" in told[0]


def test_a_commands_producer_is_connected_before_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first record would wait a second for librdkafka's timer. A cluster that does not answer is no error yet."""
    asked: list[float] = []

    class Away:
        """librdkafka's producer without a cluster."""

        def __init__(self, config: dict[str, object]) -> None:
            self.produce = self.poll = config.get

        def list_topics(self, *, timeout: float) -> None:
            """No answer."""
            asked.append(timeout)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(producing, "Librdkafka", Away)
    CommandProducer(SETTINGS, "test")
    assert asked == [producing.CONNECT_S]
