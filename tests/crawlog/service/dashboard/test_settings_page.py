"""The page Settings: who has set what, and no secret."""

from aiohttp import encode_basic_auth

from crawlog.service.dashboard.settings_page import settings_page
from crawlog.streams.settings import NO_FILE, Sources, known_keys, resolve
from tests.support.serving import served

BAD = "<script>window.hit=1</script>"

USERS = '{"rita": {"password": "hunter2", "role": "read"}}'

SETTINGS = resolve(
    Sources(
        pairs=["politeness.delay_s=3", f"fetch.user_agent={BAD}"],
        config=NO_FILE,
        environ={"CRAWLOG_SERVICE__USERS": USERS, "CRAWLOG_KAFKA__SASL_PASSWORD": "hunter2"},
    )
).settings


def test_an_address_chooses_settings() -> None:
    """By section, by who set them, and by any text about them."""

    def keys(**given: str) -> list[str]:
        return [one.key for one in settings_page(SETTINGS, given).rows]

    assert keys(origin="set") == ["kafka.sasl_password", "politeness.delay_s", "fetch.user_agent", "service.users"]
    assert keys(section="politeness")[0].startswith("politeness.")
    assert keys(q="environment CRAWLOG_SERVICE__USERS") == ["service.users"]
    assert settings_page(SETTINGS, {"origin": "default"}).total == len(known_keys()) - 4


async def test_a_reader_sees_who_set_a_value_and_no_secret() -> None:
    """What the environment holds may be a password, whatever its setting."""
    headers = {"Authorization": encode_basic_auth("rita", "hunter2")}
    async with served(SETTINGS) as client:
        for path in ("/ui/settings?origin=set", "/api/v1/settings"):
            got = await client.get(path, headers=headers)
            text = await got.text()
            assert (got.status, "hunter2" in text) == (200, False)
            assert "environment CRAWLOG_SERVICE__USERS" in text
        text = await (await client.get("/ui/settings?origin=set", headers=headers)).text()
        assert "&lt;script&gt;w" in text
        assert "<script>w" not in text
