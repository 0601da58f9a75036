"""The sink's worker: reads crawl.items and fills the state of one sink.

    attach           opens the state; a second worker of the same sink waits here, before it joins the group
      ▼
    SinkWorker       gathers the events of Faust into batches; acknowledges them in offset order
      ▼
    SinkStage.fold   dead letters acknowledged → rows in the file → state in one batch → positions  (sink_agent.py)
      ▼
    RowMaker         where items pass pipelines: a child makes the rows  (row_maker.py, pipelines_child.py)
      ▼
    streams/sink     rows of a record, the files and the database; `crawlog run` makes FILE at the end

The state's offsets are the truth: `SinkStage.starts` begins there, and the offsets committed to Kafka only follow.
"""
