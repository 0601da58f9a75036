"""The sink: crawl.items, folded into one output of one job.

    record of crawl.items
      │ batch      `entry`: is it this job's, and what are its rows? `SinkBatch`: the changes of many
      ▼
    SinkState      state: FILE.partial with all rows, RocksDB with the place of each key's newest ones
      │ state_folder   its lock, its database, the note about FILE; how it is set aside, removed, read again
      │ changes    of a store's: the keys whose rows changed, in order ─► Store.write (streams/stores)
      │ made       where pipelines make the rows: items.partial with raw items, FILE.partial with the rows made of them
      │ finish     the job is finished, and no row lacks: the newest rows, FILE by rename, whole or not at all
      ▼
    Sink.write     formats: the class to derive from, and JSON lines, JSON, CSV
                   registry: which class writes `-o OUTPUT`, built-in or a plug-in of the group `crawlog.sinks`

Where an output lies: `fleet_outputs` for a job on a fleet, `private` for a run. No record names a path. agents/outputs
runs the fold, and finishes.
"""

from .batch import Entry, RawItems, entry, lines, plain_row, plain_rows
from .finish import (
    RowSource,
    finalise,
    is_complete,
    lacking,
    lose,
    nowhere,
    pipeline_rows,
    write_file,
    write_other,
    write_rows,
)
from .fleet_outputs import fleet_sink_of, outputs_folder, places_of
from .formats import ResultRows, Sink
from .made import PipelineRows, RawBlock, summed
from .private import Lacking, PrivateNotes, PrivateOutputs, private_sink_of
from .registry import NOWHERE, is_file, sink_class, sink_for, sink_of
from .state import SinkState
from .state_folder import Final, empty, final_of, forget_others, forget_output, has_pipelines, meta_of, state_of

__all__ = [
    "NOWHERE",
    "Entry",
    "Final",
    "Lacking",
    "PipelineRows",
    "PrivateNotes",
    "PrivateOutputs",
    "RawBlock",
    "RawItems",
    "ResultRows",
    "RowSource",
    "Sink",
    "SinkState",
    "empty",
    "entry",
    "final_of",
    "finalise",
    "fleet_sink_of",
    "forget_others",
    "forget_output",
    "has_pipelines",
    "is_complete",
    "is_file",
    "lacking",
    "lines",
    "lose",
    "meta_of",
    "nowhere",
    "outputs_folder",
    "pipeline_rows",
    "places_of",
    "plain_row",
    "plain_rows",
    "private_sink_of",
    "sink_class",
    "sink_for",
    "sink_of",
    "state_of",
    "summed",
    "write_file",
    "write_other",
    "write_rows",
]
