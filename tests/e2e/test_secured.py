"""A cluster that wants certificates, or users and passwords: the whole crawl goes by the same few settings."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from crawlog.streams.cluster import listener
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.engine import broker
from crawlog.streams.errors import EngineError
from crawlog.streams.settings.sources import load
from tests.support.certificates import authority, signed
from tests.support.cluster import Cluster, needs_site
from tests.support.node import Node
from tests.support.synthetic_site import free_port

pytestmark = [
    pytest.mark.broker,
    needs_site,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with"),
]

PROPERTIES = """\
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls},SASL_SSL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={folder}/keystore.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
"""


class Secured(NamedTuple):
    """A broker behind TLS."""

    folder: Path
    tls: str
    sasl: str
    plain: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker that asks for a certificate at one port, for a user and password at another."""
    folder = tmp_path_factory.mktemp("secured")
    authority(folder)
    signed(folder, "user")
    signed(folder, "broker", "IP:127.0.0.1")
    (folder / "keystore.pem").write_text((folder / "broker.key").read_text() + (folder / "broker.pem").read_text())
    ports = {name: free_port() for name in ("plain", "tls", "sasl", "controller")}
    identity = broker.Identity(broker.new_id(), ports["plain"], ports["controller"])
    user = ("--add-scram", "SCRAM-SHA-512=[name=me,password=secret word]")
    node = Node(folder, PROPERTIES.format(folder=folder, **ports), identity.cluster_id, *user)
    node.start()
    try:
        broker.Readiness(folder, identity, node.process, 60.0).wait()
        yield Secured(folder, f"127.0.0.1:{ports['tls']}", *(f"127.0.0.1:{ports[name]}" for name in ("sasl", "plain")))
    finally:
        node.kill()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["certificates", pytest.param("password", marks=pytest.mark.long)])
def test_a_secured_cluster_is_crawled_through(secured: Secured, tmp_path: Path, how: str) -> None:
    """Topics, workers, sink, supervisor: every client has the credentials."""
    given: dict[str, object] = {"kafka.ssl_ca": secured.folder / "ca.pem", "kafka.prefix": f"{how}."}
    if how == "certificates":
        given |= {"kafka.bootstrap": secured.tls, "kafka.security_protocol": "SSL"}
        given |= {"kafka.ssl_cert": secured.folder / "user.pem", "kafka.ssl_key": secured.folder / "user.key"}
    else:
        given |= {"kafka.bootstrap": secured.sasl, "kafka.security_protocol": "SASL_SSL"}
        given |= {"kafka.sasl_mechanism": "SCRAM-SHA-512"}
        given |= {"kafka.sasl_username": "me", "kafka.sasl_password": "secret word"}
    with Cluster(
        tmp_path, hosts=2, pages=3, settings={"politeness.delay_s": 0, "kafka.partitions": 2} | given
    ) as crawl:
        crawl.start()
        assert crawl.finish()["fetched"] == len(crawl.urls)
        told = "".join(file.read_text() for file in tmp_path.rglob("*.log"))
    assert "secret word" not in told


@pytest.mark.parametrize(
    ("port", "protocol", "told"),
    [
        ("sasl", "PLAINTEXT", "wants SASL_SSL, so a user and a password (SCRAM-SHA-512)"),
        ("sasl", "SSL", "wants SASL_SSL"),
        ("tls", "PLAINTEXT", "wants SSL"),
        ("plain", "SASL_PLAINTEXT", "wants PLAINTEXT"),
    ],
)
def test_a_cluster_that_wants_another_protocol_is_told_at_once(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, port: str, protocol: str, told: str
) -> None:
    """It closes without a word, so it is asked; the first refused request decides, not the last one."""
    monkeypatch.setattr(listener, "LOOK_S", 30.0)
    kafka = {
        "security_protocol": protocol,
        "bootstrap": getattr(secured, port),
        "sasl_username": "me",
        "sasl_password": "x",
    }
    with pytest.raises(EngineError, match=re.escape(told)) as failed:
        Admin(load({f"kafka.{name}": value for name, value in kafka.items()})).metadata(within_s=3600.0)
    assert "-s kafka.security_protocol=" in str(failed.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sasl_password": "wrong"}, "Authentication failed"),
        ({"sasl_username": "nobody"}, "Authentication failed"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "Unsupported SASL mechanism"),
        ({"ssl_ca": "user.pem"}, "certificate verify failed"),
    ],
)
def test_what_a_cluster_refuses_is_told(secured: Secured, given: dict[str, str], told: str) -> None:
    """By its own words, with the settings that may be wrong, and never the password."""
    right = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "me"}
    right |= {"sasl_password": "secret word", "ssl_ca": "ca.pem", "bootstrap": secured.sasl}
    kafka = right | given | {"ssl_ca": str(secured.folder / (right | given)["ssl_ca"])}
    with pytest.raises(EngineError, match=told) as failed:
        Admin(load({f"kafka.{name}": value for name, value in kafka.items()})).metadata()
    assert "credentials" in str(failed.value)
    assert kafka["sasl_password"] not in str(failed.value)
