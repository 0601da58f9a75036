"""Servers of kinds that are older than TLS 1.3: `network.tls` decides which ones are spoken to."""

import ssl
from typing import Any

import pytest
from msgspec import structs

from crawlog.agents.client import client as client_module
from crawlog.agents.client.client import Client
from crawlog.agents.client.connections import tls_of
from crawlog.agents.client.transport import HttpRequest
from crawlog.streams.job_spec import own_policy
from tests.support.proxies import server_tls
from tests.support.raw_http import Pages, served, settings

RSA_KEYS, CBC_SHA_1 = "AES128-SHA256:AES256-SHA", "ECDHE-RSA-AES128-SHA"

HELLO_WITHOUT_EXTENSIONS = bytes.fromhex("16 0303 002a 02 000026 0303") + bytes(32) + bytes.fromhex("00 c02f 00")
"""What a server without RFC 5746 says first, over TLS 1.2."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server that knows no TLS 1.3."""
    context = server_tls(tmp_path_factory.mktemp("tls"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def client_of(**network: Any) -> Client:
    """A client that takes any certificate."""
    base = settings()
    update = {"verify_tls": False} | network
    return Client(base.model_copy(update={"network": base.network.model_copy(update=update)}), "tester", lambda: True)


@pytest.mark.parametrize("ciphers", [RSA_KEYS, CBC_SHA_1, "ECDHE-RSA-AES256-GCM-SHA384"])
@pytest.mark.parametrize(
    ("tls", "read"),
    [
        ("compatible", {RSA_KEYS, CBC_SHA_1, "ECDHE-RSA-AES256-GCM-SHA384"}),
        ("modern", {"ECDHE-RSA-AES256-GCM-SHA384"}),
        ("AES128-SHA256", {RSA_KEYS}),
    ],
)
async def test_a_server_of_older_ciphers_is_read_by_default(
    ciphers: str, tls: str, read: set[str], server: ssl.SSLContext
) -> None:
    """RSA key exchange, and CBC with SHA-1; a job may also name ciphers of its own."""
    server.set_ciphers(ciphers)
    client = client_of(tls=tls)
    try:
        async with served(Pages(), server) as port:
            answer = await client.get(HttpRequest(f"https://127.0.0.1:{port}/one"))
    finally:
        await client.close()
    assert answer.http == (200 if ciphers in read else None)


@pytest.mark.parametrize(("tls", "is_read"), [("compatible", True), ("DEFAULT:@SECLEVEL=0", True), ("modern", False)])
def test_a_server_without_secure_renegotiation_is_read_by_default(tls: str, *, is_read: bool) -> None:
    """OpenSSL's own servers all have it, so its first answer is written here; the client waits for the next one."""
    context = tls_of(settings(), verify=False, least="1.2", tls=tls)
    answered, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(answered, sent)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    answered.write(HELLO_WITHOUT_EXTENSIONS)
    with pytest.raises(ssl.SSLError) as failed:
        connection.do_handshake()
    assert isinstance(failed.value, ssl.SSLWantReadError) == is_read


@pytest.mark.parametrize("tls", ["compatible", "modern", "ALL:aNULL:eNULL:@SECLEVEL=0"])
def test_no_cipher_without_certificate_or_encryption_is_taken(tls: str) -> None:
    """A job's record names ciphers, and any writer of the topic may write one: it cannot undo `network.verify_tls`."""
    names = {cipher["name"] for cipher in tls_of(settings(), verify=True, least="1.2", tls=tls).get_ciphers()}
    assert names
    assert not [name for name in names if "NULL" in name or name.startswith(("ADH", "AECDH"))]


async def test_ciphers_that_nobody_knows_fail_their_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from a record; contexts of many jobs do not gather."""
    monkeypatch.setattr(client_module, "MOST_CONTEXTS", 3)
    client, rules = client_of(), own_policy(settings()).rules
    try:
        for number in range(6):
            client._context(structs.replace(rules, tls=f"ALL:a{number}"))
        assert len(client._tls) <= 3
        policy = own_policy(settings())._replace(rules=structs.replace(rules, tls="unknown"))
        answer = await client.get(HttpRequest("https://127.0.0.1:2/", policy=policy))
    finally:
        await client.close()
    assert answer.reason == "tls: no cipher can be selected."
