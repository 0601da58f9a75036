"""Rows that a crawl has written. A set or a dict by URL would hide a row that was written twice."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; none if there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def doubled(urls: Iterable[str]) -> list[str]:
    """What to say of URLs that have more than one row; nothing if each has one."""
    again = sorted(url for url, count in Counter(urls).items() if count > 1)
    return [f"{len(again)} URLs with more than one row, e.g. {again[0]}"] if again else []
