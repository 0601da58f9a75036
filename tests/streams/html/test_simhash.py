"""The sketch of a page: any bytes have one, in linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.html.simhash import simhash_of


@pytest.mark.parametrize("piece", [b"<", b"<script ", b"<a", b"a ", b"<style></"])
def test_a_hostile_page_is_sketched_in_linear_time(piece: bytes) -> None:
    """Openings that never close."""
    simhash_of(piece * 200_000)


@given(st.binary(max_size=300))
def test_any_bytes_have_a_sketch(body: bytes) -> None:
    """64 bits, the same each time."""
    assert 0 <= simhash_of(body) == simhash_of(body) < 1 << 64
