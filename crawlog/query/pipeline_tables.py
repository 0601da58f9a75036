"""The rows that a job's pipelines made, as files of the table `rows`: where a sink worker has them in this data folder.

Only of jobs that have ended, as `crawlog export` has them. Of the others, and on other machines, the rows are the items
as they were scraped.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from crawlog.streams import files
from crawlog.streams.cluster import log_identity
from crawlog.streams.sink import RowSource, pipeline_rows

from .kept_table import CHUNK_ROWS, KEPT, locked, remove_left, write_file
from .tables import made_table

if TYPE_CHECKING:
    from pathlib import Path

    from crawlog.schemas.control import Finished
    from crawlog.streams.settings import Settings
    from crawlog.streams.sink_groups import SinkSpec


class MadeRows(msgspec.Struct):
    """The files of a job. Attributes: key: The epoch, the end and the number of rows that they are of."""

    key: str
    names: list[str]


def made_rows(
    settings: "Settings", folder: "Path", topic: str, ended: "Mapping[str, tuple[SinkSpec, Finished]]"
) -> dict[str, list[str]]:
    """The files with the rows of these jobs, by job; a job whose rows do not lie here is left out.

    Args:
        topic: crawl.items.
        ended: By name, a sink of the job and its end.
    """
    if not ended:
        return {}
    log = log_identity(settings, topic)
    found: dict[str, MadeRows] = {}
    with locked(folder):
        with suppress(OSError, ValueError):
            found = msgspec.json.decode((folder / KEPT).read_bytes(), type=dict[str, MadeRows])
        known, found = found, {}
        for job, (spec, end) in ended.items():
            with pipeline_rows(settings.run.data, spec, log, dict(enumerate(end.items))) as rows:
                if rows is None:
                    continue
                key = f"{log} {spec.epoch} {end.at} {rows.rows}"
                kept = known.get(job)
                if kept is None or kept.key != key or not all((folder / name).exists() for name in kept.names):
                    kept = MadeRows(key, list(_written(folder, job, spec.epoch, rows)))
                found[job] = kept
        files.write(folder / KEPT, msgspec.json.encode(known | found))
        remove_left(folder, [name for one in (known | found).values() for name in one.names])
    return {job: one.names for job, one in found.items()}


def _written(folder: "Path", job: str, epoch: int, rows: RowSource) -> Iterator[str]:
    decode = msgspec.json.Decoder(dict[str, object]).decode
    some: list[dict[str, object]] = []
    for chunk in rows.chunks():
        some += map(decode, chunk.splitlines())
        if len(some) >= CHUNK_ROWS:
            yield write_file(folder, made_table(job, epoch, some), job).name
            some = []
    yield write_file(folder, made_table(job, epoch, some), job).name
