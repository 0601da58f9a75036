"""Follows what crawl.control says of one job: its record, its end, the note that its `start` has ended."""

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

from crawlog.schemas import control
from crawlog.schemas.control import Command, Control, Finished, JobCopy, StartEnded
from crawlog.schemas.job_orders import ENDED
from crawlog.streams.log import DAMAGE_CODES, Topics, consumer_config, control_entries, is_end_of, log_bounds

if TYPE_CHECKING:
    from crawlog.processes.supervisor import Supervisor
    from crawlog.streams.settings import Settings

BATCH = 1_000
"""Records taken at a time."""


class JobTail:
    """One job in crawl.control, from now on.

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
        self._job = job
        self._keys = {f"{kind}/{job}".encode() for kind in ("job", "finished", "start", "command/job")}
        self._supervisor = supervisor
        self._is_closed = True
        self._begin()

    def _begin(self) -> None:
        """Reads what is there, and goes on behind it."""
        self._settings: Settings = self._supervisor.settings
        topic = Topics(self._settings.kafka.prefix).control
        _, end = log_bounds(self._settings, topic, [0])[0]
        for key, record in control_entries(self._settings, Topics(self._settings.kafka.prefix)).items():
            if key in self._keys:
                self._take(record)
        self._consumer = Consumer(consumer_config(self._settings))
        self._consumer.assign([TopicPartition(topic, 0, end)])
        self._is_closed = False

    def poll(self) -> None:
        """Takes the records that are there.

        Raises: EngineError: the broker was started again, and does not answer yet.
        """
        if self._is_closed or self._supervisor.settings.kafka != self._settings.kafka:
            self.close()
            self._begin()
        for message in self._consumer.consume(BATCH, 0.0):
            error = message.error()
            if error is not None:
                if error.code() in {KafkaError._AUTO_OFFSET_RESET, *DAMAGE_CODES}:
                    self.close()
                    self._begin()
                    return
                continue
            if message.key() in self._keys:
                self._read(message.key(), message.value())

    def _read(self, key: bytes | None, value: bytes | None) -> None:
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

    def close(self) -> None:
        """Closes the consumer."""
        if not self._is_closed:
            self._is_closed = True
            self._consumer.close()
