"""Registrable domains, the partitioner, and where a URL belongs."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.url.place import Place, Places, hashed, hashed_to, murmur2, partition_of, registrable_domain


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("www.example.com", "example.com"),
        ("a.b.example.co.uk", "example.co.uk"),
        ("someone.github.io", "someone.github.io"),
        ("x.someone.github.io", "someone.github.io"),
        ("github.io", "github.io"),
        ("co.uk", "co.uk"),
        ("localhost", "localhost"),
        ("example.com.", "example.com"),
        ("127.1.0.1", "127.1.0.1"),
        ("[2001:db8::1]", "[2001:db8::1]"),
        ("WWW.Example.COM", "example.com"),
        ("shop.unlisted", "shop.unlisted"),
        ("1.2.3.example9", "3.example9"),
        ("", ""),
        ("a.Bücher.example.com", "example.com"),
        ("a.bücher.de", "bücher.de"),
        ("x.食狮。公司．cn", "食狮.公司.cn"),
        ("x.א1.co.il", "א1.co.il"),
        ("x." + "é" * 70 + ".com", "é" * 70 + ".com"),
    ],
)
def test_a_registrable_domain_is_a_suffix_and_one_label(host: str, domain: str) -> None:
    """An address, a bare suffix and a single label are their own domain."""
    assert registrable_domain(host) == domain


def test_the_public_suffix_list_agrees_everywhere(testdata: Path) -> None:
    """The list's own test cases, all of them."""
    cases = json.loads((testdata / "psl" / "test_psl.json").read_text(encoding="utf-8"))
    asked = [(case["input"], case["registrable_domain"]) for case in cases if case["input"]]
    wrong = [(host, domain) for host, domain in asked if registrable_domain(host) != (domain or host.lower())]
    assert len(asked) > 70
    assert wrong == []


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_murmur2_is_kafkas(key: bytes, hashed: int) -> None:
    """Values of Kafka's own test of its Java client, as signed integers."""
    assert murmur2(key) == hashed & 0xFFFFFFFF


def test_a_key_decides_the_partition_as_in_the_java_client() -> None:
    """`foobar` has murmur2 -790332482, which is partition 2 of 4."""
    assert partition_of("foobar", 4) == hashed_to(b"foobar", 4) == (-790332482 & 0x7FFFFFFF) % 4 == 2


@given(st.text(), st.integers(1, 1000))
def test_a_partition_exists(domain: str, partitions: int) -> None:
    """Every key has one of the partitions."""
    assert 0 <= partition_of(domain, partitions) < partitions


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://a.example.com/", "http://a.example.com:80"),
        ("https://a.example.com/x?y=http://z/", "https://a.example.com:443"),
        ("https://a.example.com:8443/", "https://a.example.com:8443"),
        ("http://user:p%40ss@a.example.com/", "http://a.example.com:80"),
        ("http://[::1]/", "http://[::1]:80"),
        ("http://[::1]:81/", "http://[::1]:81"),
        ("http://h/", "http://h:80"),
        ("http://a.example.com./", "http://a.example.com:80"),
        ("https://a.example.com.:8443/", "https://a.example.com:8443"),
        ("http://./", "http://.:80"),
    ],
)
def test_a_host_key_always_names_its_port(url: str, host: str) -> None:
    """Scheme, host and port, without credentials and the root's dot."""
    assert Places(8).of(url).host == host


def test_a_place_is_the_same_from_memory() -> None:
    """What is remembered, and forgotten when there is too much of it, changes no answer."""
    places = Places(8, cached=2)
    urls = [f"http://h{n}.example.com/{n}" for n in range(5)]
    assert [places.of(url) for url in urls] == [places.of(url) for url in urls]
    domain, host = "example.com", "http://h0.example.com:80"
    assert places.of(urls[0]) == Place(domain, host, partition_of(domain, 8), hashed(domain), hashed(host))
