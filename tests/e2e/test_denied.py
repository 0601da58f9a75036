"""A cluster that denies access to a crawl which goes on: tried for a while, then said once, and the run ends."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not re-exported
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.brokers import Foreign
from tests.support.crawls import Numbered
from tests.support.processes import crawlog, ended, until
from tests.support.synthetic_site import free_port

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PROPERTIES = """\
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config={login} required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""

LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORD = "first secret"
OPERATIONS = {ResourceType.TOPIC: "*", ResourceType.GROUP: "*", ResourceType.BROKER: "kafka-cluster"}


class Guarded(Foreign):
    """A broker of somebody else's, with a user that may do everything until somebody changes that."""

    def __init__(self, folder: Path) -> None:
        plain, sasl, controller = free_port(), free_port(), free_port()
        properties = PROPERTIES.format(plain=plain, sasl=sasl, controller=controller, login=LOGIN)
        user = ("--add-scram", f"SCRAM-SHA-256=[name=me,password={PASSWORD}]")
        super().__init__(folder, properties, plain, controller, *user)
        self.bootstrap = f"127.0.0.1:{sasl}"
        self._admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{plain}", "log_level": 0})
        for kind, name in OPERATIONS.items():
            self.rule(kind, name, AclOperation.ALL, AclPermissionType.ALLOW)

    def rule(self, kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType) -> None:
        """What the user may do from now on."""
        pattern = ResourcePatternType.LITERAL
        one = AclBinding(kind, name, pattern, "User:me", "*", operation, permission)
        for future in self._admin.create_acls([one]).values():
            future.result()

    def password(self, new: str) -> None:
        """Of the user, from the next connection on; those that are there stay."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion("me", info, new.encode())
        for future in self._admin.alter_user_scram_credentials([change]).values():
            future.result()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One broker for all tests here."""
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.kill()


@pytest.fixture
def chain() -> Iterator[Numbered]:
    """A site without end: each page links to the next one."""
    made = Numbered(math.inf, lambda number: (number + 1,))
    yield made
    made.close()


def log_of(guarded: Guarded, folder: Path, prefix: str) -> list[str | Path]:
    """The options of a log there."""
    kafka = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "me"}
    kafka |= {"prefix": prefix, "partitions": "2"}
    pairs = [word for name, value in kafka.items() for word in ("-s", f"kafka.{name}={value}")]
    return ["--bootstrap", guarded.bootstrap, "--data", folder / "data", *pairs]


@pytest.mark.long
def test_a_command_that_may_not_write_says_so_and_ends_as_the_others_do(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended by itself amid its work, with a code of its workers."""
    monkeypatch.setenv("CRAWLOG_KAFKA__SASL_PASSWORD", PASSWORD)
    where = log_of(guarded, tmp_path, "read.")
    assert ended(crawlog("seed", "http://127.0.0.1:9/", "--job", "j", *where))[0] == 0
    for name in ("urls", "control"):
        guarded.rule(ResourceType.TOPIC, f"read.{name}", AclOperation.WRITE, AclPermissionType.DENY)
    for words in (
        ["seed", "http://127.0.0.1:9/b", "--job", "j"],
        ["run", "http://127.0.0.1:9/c"],
        ["replay", "--group", "fetch", "--to-earliest", "--execute"],
    ):
        code, _, err = ended(crawlog(*words, *where))
        assert code == 3, (words, err)
        assert "denies access" in err, (words, err)
        assert "producer_failed" not in err, (words, err)
        assert "last words" not in err, (words, err)


def test_a_worker_that_lacks_a_topic_and_may_not_create_it_names_it_and_ends(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never ready, so an update of a fleet stops there."""
    monkeypatch.setenv("CRAWLOG_KAFKA__SASL_PASSWORD", PASSWORD)
    for kind, name in ((ResourceType.BROKER, "kafka-cluster"), (ResourceType.TOPIC, "lacking.pages")):
        guarded.rule(kind, name, AclOperation.CREATE, AclPermissionType.DENY)
    ready = tmp_path / "ready"
    where = log_of(guarded, tmp_path, "lacking.")
    code, _, err = ended(crawlog("worker", "parse", *where, "-s", f"run.ready_file={ready}"))
    assert (code, ready.exists()) == (3, False)
    assert "lacking.pages" in err


@pytest.mark.parametrize("how", ["permission", pytest.param("password", marks=pytest.mark.long)])
def test_a_run_whose_access_is_taken_away_says_so_once_and_ends(
    guarded: Guarded, chain: Numbered, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers were started again for ever. The password takes effect as the broker comes back from a restart."""
    monkeypatch.setenv("CRAWLOG_KAFKA__SASL_PASSWORD", PASSWORD)
    where = [*log_of(guarded, tmp_path, f"{how}."), "-o", tmp_path / "rows.jsonl"]
    site = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.05"]
    run = crawlog("run", chain.url, *where, *site)
    try:
        until(lambda: chain.asked.total() > 10, "some pages")
        if how == "permission":
            guarded.rule(ResourceType.TOPIC, f"{how}.pages", AclOperation.WRITE, AclPermissionType.DENY)
        else:
            guarded.password("second secret")
            guarded.kill()
            guarded.start()
        code, _, err = ended(run)
    finally:
        run.kill()
    assert code == 3, err
    assert err.count("denies access") == 1, err
    assert ("permission.pages" if how == "permission" else "Authentication failed") in err
    assert "Traceback" not in err
    assert PASSWORD not in err
