"""Follows what crawl.control says of one job: its record, its end, the note that its `start` has ended."""

from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from crawlog.schemas import control
from crawlog.schemas.control import Command, Control, Finished, JobCopy, Rewound, StartEnded
from crawlog.schemas.job_orders import ENDED
from crawlog.streams.log import Topics, consumer_config, has_begun_again, is_end_of, is_log_end

if TYPE_CHECKING:
    from crawlog.processes.supervisor import Supervisor
    from crawlog.streams.settings import Settings

BATCH = 1_000
"""Records taken at a time."""

_REWINDS = b"rewind/"


class JobTail:
    """One job in crawl.control, as it is now and from now on.

    Attributes:
        copy: Its record; None if there is none.
        end: How its present revision ended; None while it goes on.
        start: The last note that its `start` has ended.
        command: The last command for it.
    """

    def __init__(self, supervisor: "Supervisor", job: str) -> None:
        self.copy: JobCopy | None = None
        self.start: StartEnded | None = None
        self.command: Command | None = None
        self._end: Finished | None = None
        self._rewinds: dict[bytes, Control] = {}
        self._keys = {f"{kind}/{job}".encode() for kind in ("job", "finished", "start", "command/job")}
        self._supervisor = supervisor
        self._is_closed = True
        self._begin()

    def _begin(self) -> None:
        """Begins to read all that is there. It counts when the end is reached: before, a record may be outdated."""
        self._settings: Settings = self._supervisor.settings
        self._before: dict[bytes, bytes | None] | None = {}
        self._consumer = Consumer(consumer_config(self._settings) | {"enable.partition.eof": True})
        control_topic = Topics(self._settings.kafka.prefix).control
        self._consumer.assign([TopicPartition(control_topic, 0, OFFSET_BEGINNING)])
        self._is_closed = False

    def poll(self) -> None:
        """Takes the records that are there, and waits for nothing: the caller starts a broker that has died."""
        if self._is_closed or self._supervisor.settings.kafka != self._settings.kafka:
            self.close()
            self._begin()
        while not self._is_closed and (messages := self._consumer.consume(BATCH, 0.0)):
            for message in messages:
                if (error := message.error()) is not None:
                    self._meet(error)
                elif (key := message.key() or b"") in self._keys or key.startswith(_REWINDS):
                    self._hear(key, message.value())

    def _hear(self, key: bytes, value: bytes | None) -> None:
        if self._before is None:
            self._read(key, value)
        else:
            self._before[key] = value

    def _meet(self, error: KafkaError) -> None:
        if is_log_end(error) and self._before is not None:
            before, self._before = self._before, None
            for key, value in before.items():
                self._read(key, value)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self.close()

    def _read(self, key: bytes, value: bytes | None) -> None:
        try:
            record = control.decode(key, value)
        except ValueError:
            return  # another client wrote it; the live reader of crawl.control sends it to crawl.dead
        if record is not None:
            self._take(record)

    def _take(self, record: Control) -> None:
        if isinstance(record, JobCopy):
            self.copy = record
        elif isinstance(record, Finished):
            self._end = record
        elif isinstance(record, StartEnded):
            self.start = record
        elif isinstance(record, Command):
            self.command = record
        elif isinstance(record, Rewound):
            self._rewinds[control.key(record)] = record

    @property
    def end(self) -> Finished | None:
        """How its present revision ended; None while it goes on."""
        if self._end is None or self.copy is None or not is_end_of(self._end, self.copy):
            return None
        return self._end if self.copy.spec.state in ENDED else None

    @property
    def is_stopped(self) -> bool:
        """Whether a command of the operator stops it; a spider that closes its job gives a reason."""
        command = self.command
        return command is not None and command.action == "stop" and not command.reason

    @property
    def is_deleted(self) -> bool:
        """Whether only its tombstone is left."""
        return self.copy is not None and self.copy.spec.state == "deleted"

    def has_begun_again(self, epoch: int) -> bool:
        """Whether it began again from its seeds after this epoch of it."""
        copy = self.copy
        return copy is not None and has_begun_again({**self._rewinds, control.key(copy): copy}, copy.job, epoch)

    def close(self) -> None:
        """Closes the consumer."""
        if not self._is_closed:
            self._is_closed = True
            self._consumer.close()
