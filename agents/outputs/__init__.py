"""The one writer of outputs: of all jobs on a fleet, or private to one run.

    crawl.control ─► WantedOutputs (wanted): which outputs, and may they be completed?
      ▼
    OutputsWorker    reads crawl.items once for all its outputs  (outputs_worker.py, items_log.py)
      ▼
    Output           one output: dead letters acknowledged → rows in the file → state in one batch  (output.py)
      │ RowMaker       where items pass pipelines: a child process makes the rows  (row_maker.py)
      ▼
    Completion       behind the job's end: the copies that share rows, then FILE, then a note  (completion.py, notes.py)

An archive of pages, `warc:DIR`, is filled beside them from crawl.pages  (pages_output.py).
Formats, stores and the state are in streams/sink. The state's offsets are the truth; the group's commits only follow.
"""
