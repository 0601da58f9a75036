"""The one writer of outputs: of all jobs on a fleet, or private to one run.

    crawl.control ─► WantedOutputs (wanted): which outputs, and may they be completed?
      ▼
    OutputsWorker    reads crawl.items once for all its outputs  (outputs_worker.py, items_reader.py)
      ▼
    Output           one output: its records wait, its state is open while it is written  (output.py)
      │ output_stage   dead letters acknowledged → rows in the file → state in one batch
      │ row_maker      where items pass pipelines: a child makes the rows  (pipelines_child.py)
      ▼
    Completion       the job has ended: FILE, then a note (notes.py); first the copies that share rows (output_copies)

Formats, stores and the state are in streams/sink. The state's offsets are the truth; the group's commits only follow.
"""
