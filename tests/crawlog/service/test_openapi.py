"""The description at `/api/v1/openapi.json` is read by programs in any language."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from crawlog.schemas.job_orders import CodeRef
from crawlog.service.api_v1 import ENDPOINTS, description


def patterns(part: Any) -> Iterator[str]:
    """All patterns of a description."""
    if isinstance(part, dict):
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        part = list(part.values())
    if isinstance(part, list | tuple):
        for one in part:
            yield from patterns(one)


def test_patterns_mean_the_same_in_every_language() -> None:
    r"""JSON Schema has ECMA 262's expressions: there `\Z` is the letter Z, and Python's other own signs are errors."""
    found = list(patterns(description(ENDPOINTS)))
    assert "^[0-9a-f]{64}$" in found
    assert not [one for one in found if re.search(r"\\[AZ]|\(\?P", one)]


def test_why_names_the_status_for_a_job_that_there_is_not() -> None:
    """Its job is named in the query, not in the path."""
    assert "404" in description(ENDPOINTS)["paths"]["/api/v1/why"]["get"]["responses"]


def test_a_newline_behind_a_hash_is_refused() -> None:
    """To Python `$` is before it, too."""
    hashed = "0" * 64
    assert msgspec.convert({"project": "p", "version": "1", "sha256": hashed}, CodeRef).sha256 == hashed
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"project": "p", "version": "1", "sha256": hashed + "\n"}, CodeRef)
