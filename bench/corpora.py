"""Folder of other projects' corpora, which are not part of this one; tests and benchmarks read them."""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("CRAWLOG_TESTDATA", Path(__file__).parent.parent.parent / "shared" / "testdata"))

MISSING = f"no test corpora in {FOLDER}: set CRAWLOG_TESTDATA"
