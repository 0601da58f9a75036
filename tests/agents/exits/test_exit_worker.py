"""Where an exit worker listens, and where the fleet is told to reach it."""

import pytest

from crawlog.agents.client.connections import GuardedResolver
from crawlog.agents.exits.exit_worker import Lending, listen_at, reached_at
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.settings import Settings


def _settings(**exits: object) -> Settings:
    base = Settings()
    kafka = base.kafka.model_copy(update={"bootstrap": "127.0.0.1:9092"})
    return base.model_copy(update={"kafka": kafka, "exits": base.exits.model_copy(update=exits)})


@pytest.mark.parametrize(
    ("exits", "listens", "reached"),
    [
        ({}, ("127.0.0.1", 0), "127.0.0.1:7"),
        ({"listen": "10.0.0.7:6801"}, ("10.0.0.7", 6801), "10.0.0.7:7"),
        ({"listen": "[::1]:6801"}, ("::1", 6801), "[::1]:7"),
        ({"listen": "0.0.0.0:6801"}, ("0.0.0.0", 6801), "127.0.0.1:7"),
        ({"listen": "0.0.0.0:6801", "advertised": "my.test:80"}, ("0.0.0.0", 6801), "my.test:81"),
    ],
)
def test_an_exit_is_reached_where_its_machine_reaches_the_cluster(
    exits: dict[str, object], listens: tuple[str, int], reached: str
) -> None:
    """Unless the settings name another place; of several servers this is the second one, at port 7."""
    settings = _settings(**exits)
    assert listen_at(settings) == listens
    assert reached_at(settings, listens[0], 7, 1) == reached


async def test_an_address_of_another_machine_is_a_clear_error() -> None:
    """It names the setting."""
    resolver = GuardedResolver(False, 10, 60.0)
    lending = Lending(_settings(listen="192.0.2.1:6801"), "w")
    with pytest.raises(Misconfigured, match=r"cannot listen on 192\.0\.2\.1:6801.*\n.*exits\.listen=HOST:PORT"):
        await lending._listen(resolver)
    await resolver.close()
