"""crawl.code as a process sees it: chunks and manifests, written in order, read up to the end of the topic.

write: chunks, acknowledged ─► manifest        read: from where the last look ended ─► manifests, places of chunks
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from crawlog.schemas import code
from crawlog.schemas.code import CHUNK_BYTES, MANIFEST, CodeManifest, SignedManifest
from crawlog.streams import crash_points
from crawlog.streams.cluster import log_bounds, log_identity
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.log import Producer, Topics, read_records, record_at

from . import keys

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

ACKNOWLEDGED_S = 30.0  # How long a writer waits for the log

KEY_ROOM = 16_384  # Bytes of a record beside its chunk


class CodeEntry(NamedTuple):
    """A version in the log.

    Attributes:
        offset: Of its manifest.
    """

    manifest: CodeManifest
    signed: SignedManifest
    offset: int


def unrunnable(entries: Iterable[CodeEntry], trusted: Collection[bytes]) -> list[str]:
    """The newest version of each project whose signature does not count, as `PROJECT VERSION`."""
    newest: dict[str, CodeEntry] = {}
    for one in sorted(entries, key=lambda one: one.offset):
        newest[one.manifest.project] = one
    refused = (one.manifest for one in newest.values() if keys.refusal(one.signed, trusted))
    return sorted(f"{one.project} {one.version}" for one in refused)


class CodeLog:
    """The present content of crawl.code, without the chunks' bytes. Not safe to use from two threads at once.

    Attributes:
        cluster: Kafka's cluster id.
    """

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._topic = Topics(settings.kafka.prefix).code
        self.identity = log_identity(settings, self._topic)
        self.cluster = self.identity[0]
        self._next = 0
        self._entries: dict[bytes, CodeEntry] = {}
        self._chunks: dict[bytes, int] = {}

    def look(self, settings: "Settings | None" = None) -> None:
        """Read what is new. Raises: EngineError: no answer. DamagedLog."""
        self._settings = settings or self._settings
        start, end = log_bounds(self._settings, self._topic, [0])[0]
        for record in read_records(self._settings, self._topic, 0, max(start, self._next), end):
            self._take(record.key() or b"", record.value(), record.offset() or 0)
        self._next = max(end, self._next)

    def _take(self, key: bytes, value: bytes | None, offset: int) -> None:
        self._entries.pop(key, None)
        self._chunks.pop(key, None)
        if value is None:
            return
        if not key.endswith(f"/{MANIFEST}".encode()):
            self._chunks[key] = offset
            return
        try:
            signed = code.decode(value)
            manifest = keys.read_manifest(signed, key)
        except ValueError:
            return  # any writer of the topic may have written it
        self._entries[key] = CodeEntry(manifest, signed, offset)

    @property
    def entries(self) -> list[CodeEntry]:
        """All versions whose manifest is whole and intact, trusted or not; of this cluster only."""
        return [
            entry
            for entry in self._entries.values()
            if entry.manifest.cluster == self.cluster and keys.is_intact(entry.signed)
        ]

    def find(self, project: str, version: str, sha256: str) -> CodeEntry | None:
        """The manifest of a version, unchecked but for its place."""
        return self._entries.get(code.key(project, version, sha256, MANIFEST))

    def archive(self, manifest: CodeManifest) -> bytes:
        """The archive of a version, as its manifest has it.

        Raises: Misconfigured: a chunk is missing, or it is not what was signed. EngineError.
        """
        found = bytearray()
        for part in self._parts(manifest):
            found += part
            if len(found) > manifest.size:
                break
        if len(found) != manifest.size or hashlib.sha256(found).hexdigest() != manifest.sha256:
            raise Misconfigured(
                f"the archive of {manifest.project} {manifest.version} in the log is not the one that was signed "
                f"({len(found):,} of {manifest.size:,} bytes); deploy it again"
            )
        return bytes(found)

    def _parts(self, manifest: CodeManifest) -> Iterator[bytes]:
        size = number = 0
        while size < manifest.size:
            key = code.key(manifest.project, manifest.version, manifest.sha256, number)
            offset = self._chunks.get(key)
            if offset is None:
                return
            record = record_at(self._settings, self._topic, 0, offset)
            part = None if record is None or record.key() != key else record.value()
            if not part:
                return
            size, number = size + len(part), number + 1
            yield part

    def write(self, content: bytes, signed: SignedManifest, producer: Producer) -> None:
        """Write a version: its chunks, and its manifest once the log has them.

        Raises: EngineError: the log does not answer.
        """
        manifest = code.manifest_of(signed)
        step = min(CHUNK_BYTES, self._settings.kafka.max_record_bytes - KEY_ROOM)
        for number, at in enumerate(range(0, len(content), step)):
            key = code.key(manifest.project, manifest.version, manifest.sha256, number)
            producer.send(self._topic, content[at : at + step], key=key, partition=0)
        self._wait(producer)
        crash_points.point("code.chunks")
        key = code.key(manifest.project, manifest.version, manifest.sha256, MANIFEST)
        producer.send(self._topic, code.encode(signed), key=key, partition=0)
        self._wait(producer)

    def remove(self, manifests: Iterable[CodeManifest], producer: Producer) -> None:
        """Write tombstones: of the manifest first, so that no version without chunks is seen."""
        for manifest in manifests:
            prefix = code.key(manifest.project, manifest.version, manifest.sha256, "")
            producer.send(self._topic, None, key=prefix + MANIFEST.encode(), partition=0)
            self._wait(producer)
            for key in [key for key in self._chunks if key.startswith(prefix)]:
                producer.send(self._topic, None, key=key, partition=0)
        self._wait(producer)

    def _wait(self, producer: Producer) -> None:
        if not producer.flush(ACKNOWLEDGED_S):
            raise EngineError(f"{self._topic} acknowledged nothing for {ACKNOWLEDGED_S:.0f} s; see `crawlog doctor`")
