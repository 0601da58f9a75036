"""Folder of other projects' corpora, which are not part of this one; tests and benchmarks read them."""

import base64
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

from crawlog.streams.robots.robots import RobotsRules

FOLDER = Path(os.environ.get("CRAWLOG_TESTDATA", Path(__file__).parents[3] / "shared" / "testdata"))

MISSING = f"no test corpora in {FOLDER}: set CRAWLOG_TESTDATA"

Verdict = tuple[str, bool]
"""A case by name, and whether it came out right."""


def real_robots(folder: Path) -> Iterator[Verdict]:
    """Google's verdicts on real files."""
    with gzip.open(folder / "robots-real" / "robots_real.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            site = json.loads(line)
            raw = site["robots_txt"].encode() if "robots_txt" in site else base64.b64decode(site["robots_txt_base64"])
            rules = RobotsRules.parse(raw)
            for agent, url, google, *_ in site["cases"]:
                yield f"{agent} {url}", rules.allowed(url, agent)[0] == google
