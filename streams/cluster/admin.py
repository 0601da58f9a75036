"""The admin client: asks the cluster about topics, offsets and groups, and explains why a request failed."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it does not re-export them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from crawlog.streams.errors import EngineError

from .client import DENIED_CODES, access_denied, committed_offsets, kafka_config, weak_callback
from .listener import listener_at, named_silent

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]  # so too

    from crawlog.streams.settings import Settings

ANSWER_TIMEOUT_S = 15.0  # Timeout of one request, seconds

# Timeout once a connection is refused, seconds: no listener, an unknown host name, or wrong credentials.
REFUSED_TIMEOUT_S = 1.0

# Errors of wrong credentials, certificates or a wrong address.
REFUSALS = frozenset({KafkaError._RESOLVE, *DENIED_CODES})

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")  # Those that `kafka.sasl_mechanism` takes

POLL_S = 0.02  # Pause between two polls for a pending change, such as topics that are being created, seconds

# Errors during a change of a partition's leader; the request is retried.
LEADER_CHANGES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # the leader of a new topic is elected before the broker learns of the topic
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader does not know its followers' offsets yet
        KafkaError._NOENT,  # the client knows no leader, and sent no request
    }
)

FIRST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # its stub has no types

LAST = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # so too


class Admin:
    """An admin client whose failures are EngineErrors that name the cluster. Keep it open: it then answers in 1 ms."""

    def __init__(self, settings: "Settings") -> None:
        self.settings = settings
        self._last = ""
        self._is_refused = False
        self._is_denied = False
        config: dict[str, Any] = kafka_config(settings) | {"error_cb": weak_callback(self._noted)}
        self.client = AdminClient(config)

    def _noted(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # comes with its causes, in any order
            self._last = error.str()
            self._is_refused = error.code() in REFUSALS or "refused" in self._last
            self._is_denied = error.code() in DENIED_CODES

    def metadata(self, topic: str | None = None, within_s: float = ANSWER_TIMEOUT_S) -> "ClusterMetadata":
        """Brokers and topics of the cluster; retried for `within_s`, or REFUSED_TIMEOUT_S after a refusal."""
        for wait_s in (REFUSED_TIMEOUT_S, within_s - REFUSED_TIMEOUT_S):
            try:
                return self.client.list_topics(topic, timeout=wait_s)
            except KafkaException as error:
                failure = error.with_traceback(None)  # its traceback would hold this frame, and so the client
            self.client.poll(0)  # librdkafka reports the cause by a callback
            if wait_s == REFUSED_TIMEOUT_S and (mistake := self._mistake()) is not None:
                raise mistake
            if self._is_refused:
                break
        raise self._failed(failure, has_metadata=False) from None

    def result(self, future: "Future[Any]") -> Any:
        """The answer to a request."""
        try:
            return future.result(ANSWER_TIMEOUT_S + 1)
        except KafkaException as error:
            raise self._failed(error) from None

    def create(self, new: list[NewTopic]) -> None:
        """Creates topics and returns when all their leaders answer. A topic that exists already is no error."""
        futures = self.client.create_topics(new, operation_timeout=ANSWER_TIMEOUT_S, request_timeout=ANSWER_TIMEOUT_S)
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code in DENIED_CODES:
                    said = f"the topic {name} is missing and may not be created: {error.args[0].str()}"
                    raise access_denied(self.settings, said) from None
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self._failed(error) from None
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not self._have_leaders({topic.topic for topic in new}):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"The topics created on {self.settings.kafka.bootstrap} have no leaders yet. Run it again."
                )
            time.sleep(POLL_S)
        known = self.metadata().topics  # one that existed may have another number of partitions
        self.offsets((TopicPartition(one.topic, at) for one in new for at in known[one.topic].partitions), LAST)

    def _have_leaders(self, names: set[str]) -> bool:
        known = self.metadata().topics
        return all(
            name in known and known[name].partitions and all(p.leader >= 0 for p in known[name].partitions.values())
            for name in names
        )

    def ask_config(self, kind: ResourceType, name: str, within_s: float) -> "Future[Any]":
        """The settings of a broker or a topic, to come; a broker is asked itself."""
        asked = ConfigResource(kind, name)
        return self.client.describe_configs([asked], request_timeout=within_s)[asked]

    def configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        """The settings of topics, by name."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self.client.describe_configs(resources, request_timeout=ANSWER_TIMEOUT_S)
        return {
            resource.name: {key: entry.value for key, entry in self.result(future).items()}
            for resource, future in answers.items()
        }

    def raise_limit(self, names: list[str], max_bytes: int) -> None:
        """Raises the largest record of topics: the setting was raised since they were created."""
        entry = ConfigEntry("max.message.bytes", str(max_bytes), incremental_operation=AlterConfigOpType.SET)
        resources = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in names]
        for future in self.client.incremental_alter_configs(resources, request_timeout=ANSWER_TIMEOUT_S).values():
            self.result(future)

    def offsets(self, places: Iterable[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        """First or end offsets, by (topic, partition); retried while leaders change."""
        asked = dict.fromkeys(places, spec)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            self.client.poll(0)  # librdkafka reports denied access by a callback only
            wait_s = REFUSED_TIMEOUT_S if self._is_denied else ANSWER_TIMEOUT_S
            answers = self.client.list_offsets(asked, request_timeout=wait_s)
            try:
                found = {(at.topic, at.partition): future.result().offset for at, future in answers.items()}
            except KafkaException as error:
                if error.args[0].code() not in LEADER_CHANGES or time.monotonic() > deadline:
                    raise self._failed(error) from None
            else:
                if OFFSET_INVALID in found.values():  # not an error for librdkafka (2.16)
                    raise self._failed(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
                self._is_denied = False
                return found
            time.sleep(POLL_S)
            self.metadata()  # refreshes leader epochs that may be stale

    def ends(self, names: Iterable[str], count: int) -> dict[str, tuple[int, ...]]:
        """The end offset of each partition, by topic, for topics of `count` partitions."""
        names = list(names)
        found = self.offsets((TopicPartition(name, number) for name in names for number in range(count)), LAST)
        return {name: tuple(found[name, number] for number in range(count)) for name in names}

    def groups(self, prefix: str) -> list[str]:
        """Names of the consumer groups that begin with `prefix`: each sink is one."""
        self.metadata()  # fails fast without a broker; the request below would wait for its whole timeout
        found = self.result(self.client.list_consumer_groups(request_timeout=ANSWER_TIMEOUT_S))
        return sorted(one.group_id for one in found.valid if one.group_id.startswith(prefix))

    def committed(self, group_id: str, topic: str) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed on a topic; empty for an unknown group."""
        known = self.metadata(topic).topics.get(topic)
        found = committed_offsets(self.settings, group_id, topic, known.partitions) if known else {}
        return {(topic, number): offset for number, (offset, _) in found.items()}

    def _mistake(self) -> EngineError | None:
        """The error of a client that goes to a listener of another protocol; librdkafka hears only that it closes."""
        kafka = self.settings.kafka
        found = listener_at(kafka.bootstrap)
        if found is None or found.protocol == kafka.security_protocol:
            return None
        wants, setting = found.protocol, f"-s kafka.security_protocol={found.protocol}"
        if found.mechanisms:
            wants += f", so a user and a password ({', '.join(found.mechanisms)})"
            known = next((one for one in found.mechanisms if one in MECHANISMS), MECHANISMS[0])
            setting += f" -s kafka.sasl_mechanism={known} -s kafka.sasl_username=USER, and the password in the "
            setting += "environment (CRAWLOG_KAFKA__SASL_PASSWORD)"
        return EngineError(
            f"The Kafka cluster at {kafka.bootstrap} wants {wants}; kafka.security_protocol is "
            f"{kafka.security_protocol}.\nGive {setting}. A local engine of crawlog's is named by its data folder, "
            "`--data DIR`, not by its address."
        )

    def _failed(self, error: KafkaException, *, has_metadata: bool = True) -> EngineError:
        kafka = self.settings.kafka
        said = error.args[0].str() + (f" ({self._last})" if self._last else "")
        if self._is_denied or error.args[0].code() in DENIED_CODES:
            return access_denied(self.settings, said)
        if error.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR:
            return EngineError(
                f"The Kafka broker at {kafka.bootstrap} cannot write its log: {said}.\n"
                "Its disk is full, or fails: free some space where it keeps its data (of the local engine the data "
                "folder, `--data DIR`), then the same command goes on."
            )
        is_unanswered = error.args[0].code() < 0  # librdkafka's own codes
        wrong = named_silent(self.client) if is_unanswered and has_metadata else ""
        return EngineError(
            f"The Kafka cluster at {kafka.bootstrap} ({kafka.security_protocol}) does not do what was asked: {said}.\n"
            + (f"{wrong}\n" if wrong else "")
            + "Check that it runs and that the address (`--bootstrap`), the kafka.security_protocol, the credentials "
            "and the permissions are right; `crawlog doctor` tells more."
        )
