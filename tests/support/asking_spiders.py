"""Code of a child that downloads by its worker: several at a time."""

import asyncio

from crawlog.schemas.requests import RequestRecord
from crawlog.streams.downloads import WORKER
from crawlog.streams.spiders import SpiderFacts


class Asking:
    """Answers a call with the errors and sizes of so many downloads."""

    facts = SpiderFacts(path="asking", label="asking@0")

    async def call(self, name: str, argument: bytes) -> bytes:
        """One line a download."""
        asks = (WORKER.download(f"{name}{number}", RequestRecord(), 0) for number in range(int(argument)))
        answers = await asyncio.gather(*asks)
        return "\n".join(f"{meta.url} {meta.error}{len(body)}" for meta, body in answers).encode()


def load(*_: object, **__: object) -> Asking:
    """The loader."""
    return Asking()
