"""The archive of one job: WARC 1.1 files of its pages in a folder, each with its CDXJ index.

    record of crawl.pages
      │ captures   what was asked and answered ─► request, response, revisit, resource
      ▼
    WarcArchive        warc_files: JOB-00000.warc.gz and .cdxj, appended to; a new one at `sink.warc_mb`
      │ manifest     JOB.manifest.json: sizes and offsets, replaced at once. A longer file is cut when it is opened; a
      ▼              shorter or missing one is made again
    PageArchiver   filling: reads what is new in crawl.pages, and what must be made again

A sink worker (agents/outputs/pages_output.py) or `crawlog export` calls `PageArchiver.fill` until the job has ended.
"""

from .filling import PageArchiver

__all__ = ["PageArchiver"]
