"""crawl.hosts: buckets, keys, and records of strangers."""

from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import hosts as h


@given(st.integers(0, (1 << 64) - 1))
def test_a_bucket_is_a_range_of_hashes(number: int) -> None:
    """The state's rows are ordered by the hash, so a bucket's rows are adjacent."""
    bucket = h.bucket_of(number)
    assert bucket << 56 <= number < bucket + 1 << 56
    assert 0 <= bucket < h.BUCKETS


@given(st.integers(0, 10_000), st.integers(0, h.BUCKETS - 1))
def test_a_key_is_read_back(partition: int, bucket: int) -> None:
    """The key has all that a reader needs to replace a bucket."""
    assert h.read_key(h.key(partition, bucket)) == (partition, bucket)


@given(st.binary() | st.none(), st.binary())
def test_whatever_bytes_a_stranger_writes_raise_nothing(key: bytes | None, value: bytes) -> None:
    """Any client may write to the topic."""
    assert h.read_key(key) is None or h.key(*h.read_key(key) or (0, 0))
    found = h.decode(value)
    assert found is None or isinstance(found, h.HostBucket)


def test_a_bucket_is_read_back() -> None:
    """Fields without a value are left out, and come back."""
    one = h.HostFigures("https://a:443", 3, results={"200": 2}, robots=h.HostRobots(1.0, 200, rules=["Disallow: /x"]))
    assert h.decode(h.encode(h.HostBucket([one], 2))) == h.HostBucket([one], 2)
