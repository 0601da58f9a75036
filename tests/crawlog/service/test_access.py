"""Who may do what: credentials, roles of every route, and the address that is listened on."""

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawlog.service import access
from crawlog.service.access import Accounts, check_reach
from crawlog.service.app import make_app
from crawlog.service.passwords import hashed, matches
from crawlog.service.rates import Rates
from crawlog.service.routing import ROLES, ROUTES, Role, ServiceRoute, check_routes
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings import Settings
from tests.support.serving import OWN_TOKEN, reached, served, service_settings, told_fleet

USERS = {
    "ann": "her$word",
    "rea": {"password": "reads", "role": "read"},
    "opa": {"password": "operates", "role": "operate"},
    "dee": {"password": "deploys", "role": "deploy"},
}

DJANGO = (
    "pbkdf2_sha256$1000$salt$"
    + base64.b64encode(__import__("hashlib").pbkdf2_hmac("sha256", b"secret", b"salt", 1000)).decode()
)


def basic(name: str, password: str) -> dict[str, str]:
    """The header of a user."""
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def _who(settings: Settings, header: str) -> str | None:
    account = Accounts(settings, OWN_TOKEN).who(header)
    return account.name if account else None


WITH_USERS = service_settings(users=USERS, tokens={"ci": "hers", "bot": {"token": hashed("his"), "role": "read"}})


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (basic("ann", "her$word")["Authorization"], "ann"),
        (basic("rea", "reads")["Authorization"], "rea"),
        (basic("ann", "reads")["Authorization"], None),
        (basic("nobody", "her$word")["Authorization"], None),
        (basic("ann", "")["Authorization"], None),
        (basic("anyone", "hers")["Authorization"], "ci"),
        ("Bearer hers", "ci"),
        ("bearer his", "bot"),
        ("Bearer her", None),
        ("Bearer ", None),
        (f"Bearer {OWN_TOKEN}", None),
        (basic("ann", OWN_TOKEN)["Authorization"], None),
        ("Basic !!!", None),
        ("Basic " + base64.b64encode(b"\xff\xfe").decode(), None),
        ("Basic", None),
        ("Digest hers", None),
        ("", None),
    ],
)
def test_credentials_are_those_of_the_settings(header: str, name: str | None) -> None:
    """The folder's token counts no longer where users are named."""
    assert _who(WITH_USERS, header) == name


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (f"Bearer {OWN_TOKEN}", access.OWN),
        (basic("any", OWN_TOKEN)["Authorization"], access.OWN),
        (basic("", OWN_TOKEN)["Authorization"], access.OWN),
        ("Bearer wrong", None),
    ],
)
def test_without_users_the_folders_token_lets_in(header: str, name: str | None) -> None:
    """As a Basic password too, with any name: Scrapyd's clients have no other place for it."""
    assert _who(service_settings(), header) == name


def test_a_folder_without_a_token_lets_nobody_in() -> None:
    """An empty one is no password."""
    assert Accounts(service_settings(), "").who("Bearer ") is None


def test_hashes_are_scrypt_and_djangos_pbkdf2() -> None:
    """`python -m crawlog.service.passwords` makes the first."""
    command = [sys.executable, "-m", "crawlog.service.passwords"]
    made = subprocess.run(command, input="secret\n", capture_output=True, text=True, check=True).stdout.strip()
    assert service_settings(users={"ann": made}).service.users == {"ann": made}
    for kept in (made, DJANGO):
        assert matches("secret", kept)
        assert not matches("Secret", kept)
        assert not matches(kept, kept)


async def test_without_credentials_the_answer_is_that_of_scrapyd() -> None:
    """401, `Unauthorized`, and a challenge for browsers; an unknown path is not told either."""
    async with served(service_settings(), reached) as client:
        for path in ("/readyz-not", "/", "/nothing/here"):
            got = await client.get(path)
            assert (got.status, await got.text()) == (401, "Unauthorized"), path
            assert got.headers["WWW-Authenticate"].startswith("Basic ")
        assert (await client.get("/nothing/here", headers=basic("", OWN_TOKEN))).status == 404


async def test_wrong_passwords_are_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some the address is not looked at any more, not even with the right one."""
    monkeypatch.setattr("crawlog.service.app.WRONG_AT_ONCE", 3.0)
    async with served(service_settings(), reached) as client:
        codes = [(await client.get("/x", headers=basic("a", "wrong"))).status for _ in range(5)]
        assert codes == [401, 401, 401, 429, 429]
        assert (await client.get("/x", headers=basic("a", OWN_TOKEN))).status == 429
        assert (await client.get("/healthz")).status == 200


def _routes() -> Iterator[ServiceRoute]:
    app = make_app(service_settings(), told_fleet(), OWN_TOKEN)
    yield from app[ROUTES].values()


OPEN = {"/healthz", "/readyz"}
ROUTES_OF_THE_SERVICE = sorted(set(_routes()), key=lambda one: (one.path, one.method))

READS = ("GET", "HEAD", "OPTIONS")


def test_only_health_is_open_and_reading_is_no_change() -> None:
    """A new route that changes something needs more than `read`."""
    for route in ROUTES_OF_THE_SERVICE:
        assert (route.role is None) == (route.path in OPEN), route
        if route.path.startswith("/api/"):
            assert (route.role == "read") == (route.method in READS), route
            assert (route.role == "deploy") == ("/projects/" in route.path and route.method not in READS), route


@pytest.mark.parametrize("user", ["rea", "opa", "dee"])
async def test_every_route_lets_in_its_role_and_those_above(user: str) -> None:
    """The table of all routes: a role too low is 403, and nothing happens."""
    role: Role = {"rea": "read", "opa": "operate", "dee": "deploy"}[user]  # type: ignore[assignment]  # three of them
    header = basic(user, USERS[user]["password"])  # type: ignore[index]  # these have a role
    async with served(service_settings(users=USERS), reached) as client:
        for route in ROUTES_OF_THE_SERVICE:
            if route.path in OPEN:
                continue
            assert route.role is not None
            path = "".join(
                part.split("}")[-1] if "}" in part else part for part in route.path.replace("{", "{x").split("{")
            )
            got = await client.request(
                "POST" if route.method == "*" else route.method, "/" + path.lstrip("/"), headers=header
            )
            allowed = ROLES.index(role) >= ROLES.index(route.role)
            assert got.status == (200 if allowed else 403) or got.status in (404, 405), (route, got.status)


def test_a_route_that_nobody_gave_a_role_is_refused() -> None:
    """Where it was added past `routing.add`."""
    app = make_app(service_settings(), told_fleet(), OWN_TOKEN)
    app.router.add_get("/secret", reached)
    with pytest.raises(Misconfigured, match=r"(GET|HEAD) /secret of the service has no role"):
        check_routes(app)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7", "crawl.example"])
def test_an_address_that_others_reach_needs_users(address: str) -> None:
    """Or tokens; loopback needs neither."""
    with pytest.raises(Misconfigured, match=r"service\.users"):
        check_reach(service_settings(address=address))
    check_reach(service_settings(address=address, users={"ann": "hers"}))
    check_reach(service_settings(address=address, tokens={"ci": "hers"}))
    for loopback in ("127.0.0.1", "::1", "localhost", "127.3.2.1"):
        check_reach(service_settings(address=loopback))


def test_on_every_address_without_users_the_service_does_not_start(tmp_path: Path) -> None:
    """`crawlog worker service` ends with 2 and says what to set, before it asks the log."""
    command = [sys.executable, "-m", "crawlog", "worker", "service", "--data", str(tmp_path / "data")]
    command += ["-s", "service.address=0.0.0.0", "--bootstrap", "127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Set service.users or service.tokens" in done.stderr


def test_a_bucket_fills_again() -> None:
    """Two at once, then one a second."""
    now = [0.0]
    rates = Rates(1.0, 2.0, clock=lambda: now[0])
    assert [rates.take("a"), rates.take("a"), rates.take("a"), rates.take("b")] == [True, True, False, True]
    now[0] = 1.0
    assert [rates.take("a"), rates.take("a")] == [True, False]
