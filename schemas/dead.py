"""crawl.dead: a record that could not be handled, as it was; why stands in the headers.

Key and value are the failing record's own. Headers, all UTF-8: `topic`, `partition`, `offset` (where it was), `stage`
(frontier, parse, sink, control), `job` when known, `error` (one line), `traceback` (may be empty).
"""

import msgspec

MAX_TRACEBACK = 8 * 1024
"""Characters of a traceback kept, the last ones: the cause stands at its end."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A failing record and where, when and why it failed."""

    topic: str
    partition: int
    offset: int
    stage: str
    error: str
    key: bytes | None = None
    value: bytes | None = None
    job: str = ""
    traceback: str = ""

    def headers(self) -> list[tuple[str, bytes]]:
        """The Kafka headers that stand beside the record's own key and value."""
        fields = {
            "topic": self.topic,
            "partition": str(self.partition),
            "offset": str(self.offset),
            "stage": self.stage,
            "job": self.job,
            "error": self.error,
            "traceback": self.traceback[-MAX_TRACEBACK:],
        }
        return [(name, text.encode("utf-8", "replace")) for name, text in fields.items()]


def from_headers(headers: dict[str, bytes], key: bytes | None, value: bytes | None) -> DeadLetter:
    """The dead letter in a record of crawl.dead; fields that are missing or make no sense are empty or -1."""
    text = {name: raw.decode("utf-8", "replace") for name, raw in headers.items()}
    return DeadLetter(
        topic=text.get("topic", ""),
        partition=_number(text.get("partition", "")),
        offset=_number(text.get("offset", "")),
        stage=text.get("stage", ""),
        error=text.get("error", ""),
        key=key,
        value=value,
        job=text.get("job", ""),
        traceback=text.get("traceback", ""),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
