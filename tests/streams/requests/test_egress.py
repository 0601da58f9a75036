"""Which addresses and ports may be connected to."""

import ipaddress
import json
from pathlib import Path

import pytest

from crawlog.agents.client.connections import Connector
from crawlog.agents.client.transport import Asker, HttpRequest
from crawlog.streams.fetch.retry import may_pass
from crawlog.streams.requests.egress import address_refusal, literal_refusal, port_refusal
from crawlog.streams.session.login import read_form
from tests.support.sites import posting, sites

METADATA = [
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "169.254.170.2",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fe80::a9fe:a9fe%eth0",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
]


def test_every_known_trick_is_refused(testdata: Path) -> None:
    """First, middle and last address of each network, and each address, as other projects' guards judge them."""
    cases = json.loads((testdata / "ssrf" / "cases.json").read_text(encoding="utf-8"))
    wrong, asked = [], 0
    for case in cases:
        if case["block"] is None:
            continue
        addresses = [case["value"]]
        if case["kind"] == "network":
            network = ipaddress.ip_network(case["value"])
            addresses = [str(network[at]) for at in (0, network.num_addresses // 2, -1)]
        for address in addresses:
            asked += 1
            if (address_refusal(address, allow_private=False) is not None) != case["block"]:
                wrong.append(address)
    assert asked > 100
    assert wrong == []


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "172.15.0.1", "172.32.0.1", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_the_public_internet_is_allowed(address: str) -> None:
    """Also where IPv6 only wraps IPv4."""
    assert address_refusal(address, allow_private=False) is None


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "::1", "fe80::1%eth0", "fc00::1", "::ffff:10.0.0.1", "0.0.0.0", "::"]
)
def test_private_addresses_are_for_those_who_say_so(address: str) -> None:
    """Refused by default, allowed with the setting."""
    assert (
        address_refusal(address, allow_private=False)
        == f"private address {ipaddress.ip_address(address.split('%', maxsplit=1)[0])}"
    )
    assert address_refusal(address, allow_private=True) is None


@pytest.mark.parametrize("address", METADATA)
def test_cloud_metadata_is_never_allowed(address: str) -> None:
    """In no spelling, under no setting."""
    assert (address_refusal(address, allow_private=True) or "").startswith("metadata address")


@pytest.mark.parametrize("address", ["", "localhost", "1.2.3", "1.2.3.4.5", "[::1]"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """A resolver gives none of these."""
    assert address_refusal(address, allow_private=True) is not None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "x.internal",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "[::1]",
        "::1",
        "[::ffff:7f00:1]",
        "１２７.0.0.1",
        "%31%32%37.0.0.1",
        "0",
        "127。0。0。1",
        "metadata.google.internal",
        "169.254.169.254",
        "a/b",
        "",
        "a b",
    ],
)
def test_a_host_is_judged_as_a_url_parser_reads_it(host: str) -> None:
    """Names that mean this machine or its network, and every spelling of an address."""
    assert literal_refusal(host, allow_private=False) is not None


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "internal.example.com",
        "localhost.example.com",
        "10.example.com",
        "8.8.8.8",
        "dead.beef",
        "xn--a.com",
        "xn--b39h.ws",
        "🫩.ws",
    ],
)
def test_other_names_are_left_to_the_resolver(host: str) -> None:
    """A name alone tells nothing."""
    assert literal_refusal(host, allow_private=False) is None


def test_metadata_names_are_never_allowed() -> None:
    """As their addresses."""
    for name in ("metadata.goog", "Metadata.TencentYun.com", "api.metadata.cloud.ibm.com.", "rancher-metadata"):
        assert (literal_refusal(name, allow_private=True) or "").startswith("metadata name")
    assert literal_refusal("metadata.google.internal", allow_private=True) == "metadata name metadata.google.internal"
    assert literal_refusal("localhost", allow_private=True) is None


@pytest.mark.parametrize("port", [0, 22, 25, 6000, 6667, 10080])
def test_a_port_of_another_protocol_is_refused(port: int) -> None:
    """Fetch's list, whatever the host is."""
    assert port_refusal(f"http://example.com:{port}") == f"port {port} is another protocol's"
    assert port_refusal(f"https://[2606:4700::1]:{port}") is not None


@pytest.mark.parametrize(
    "origin", ["http://example.com", "https://[::1]", "http://a.com:8080", "http://25", "http://[::25]"]
)
def test_other_ports_are_allowed(origin: str) -> None:
    """Also where a number stands in the host."""
    assert port_refusal(origin) is None


async def test_nothing_is_sent_to_a_port_of_another_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a page, nor a form, nor robots.txt; private networks and proxies make no difference."""
    connected: list[object] = []
    monkeypatch.setattr(Connector, "connect", lambda *_, **__: connected.append(None))
    for proxies in ((), ("http://127.0.0.1:1",), ("socks5h://127.0.0.1:1",)):
        async with sites(proxies=proxies) as client:
            answers = [await client.get(HttpRequest("http://127.0.0.1:25/robots.txt", any_type=True, max_bytes=10))]
            answers.append(await client.get(HttpRequest("http://127.0.0.1:25/page", asker=Asker(wants_place=True))))
            answers.append(await client.get(posting(read_form("http://127.0.0.1:25/login#user=ann"), "j")))
        for answer in answers:
            assert (answer.http, answer.error) == (None, "bad_port: port 25 is another protocol's")
            assert not may_pass(answer), "it would be tried again"
    assert connected == []
