"""Who may do what: credentials, roles of every route, and the address that is listened on."""

import asyncio
import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web

from crawlog.service import access
from crawlog.service.access import Accounts, check_reach, hashed, matches
from crawlog.service.doors import Rates
from crawlog.service.process import make_app
from crawlog.service.routing import ROLES, ROUTES, Role, ServiceRoute, check_routes
from crawlog.service.scrapyd import ENDPOINTS
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
    account = Accounts(settings, OWN_TOKEN).who(header, "127.0.0.1")
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
        ("Bearer \udcff", None),
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
    assert Accounts(service_settings(), "").who("Bearer ", "127.0.0.1") is None


def test_hashes_are_scrypt_and_djangos_pbkdf2() -> None:
    """`python -m crawlog.service.access` makes the first."""
    command = [sys.executable, "-m", "crawlog.service.access"]
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
    """After some the address is not looked at any more, not even with a right one that is new."""
    monkeypatch.setattr("crawlog.service.process.WRONG_AT_ONCE", 3.0)
    async with served(service_settings(), reached) as client:
        codes = [(await client.get("/x", headers=basic("a", "wrong"))).status for _ in range(5)]
        assert codes == [401, 401, 401, 429, 429]
        assert (await client.get("/x", headers=basic("a", OWN_TOKEN))).status == 429
        assert (await client.get("/healthz")).status == 200


async def test_nobody_locks_out_those_who_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of one machine and those behind one proxy share an address; strangers there cannot shut the others out."""
    monkeypatch.setattr("crawlog.service.process.WRONG_AT_ONCE", 3.0)
    async with served(service_settings(), reached) as client:
        codes = [(await client.get("/x", headers=basic("a", OWN_TOKEN))).status for _ in range(5)]
        codes += [(await client.get("/x", headers=basic("a", "wrong"))).status for _ in range(4)]
        assert codes == [404] * 5 + [401, 401, 401, 429]
        assert (await client.get("/x", headers=basic("a", OWN_TOKEN))).status == 404


async def test_no_more_passwords_are_tried_at_once_than_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that come while hashes are computed, too."""
    monkeypatch.setattr("crawlog.service.process.WRONG_AT_ONCE", 3.0)
    tried: list[str] = []

    def tries(_: Accounts, header: str, _address: str) -> None:
        tried.append(header)

    monkeypatch.setattr(Accounts, "who", tries)
    async with served(service_settings(users={"ann": hashed("hers")}), reached) as client:
        all_at_once = [client.get("/x", headers=basic("ann", str(number))) for number in range(12)]
        codes = sorted(got.status for got in await asyncio.gather(*all_at_once))
    assert codes == [401] * 3 + [429] * 9
    assert len(tried) == 3


def test_a_password_in_use_elsewhere_is_no_answer_to_guesses_beyond_the_limit() -> None:
    """The right guess would be let in, while all others are told to wait."""
    accounts = Accounts(service_settings(users={"ann": "hers"}), "")
    header = basic("ann", "hers")["Authorization"]
    assert accounts.who(header, "192.0.2.1") == accounts.proven(header, "192.0.2.1") is not None
    assert accounts.proven(header, "192.0.2.2") is None


OPEN = {"/healthz", "/readyz"}

READS = ("GET", "HEAD", "OPTIONS")


class _Place(NamedTuple):
    """A route of the router, with a path that leads to it."""

    route: ServiceRoute
    path: str


def _places() -> Iterator[_Place]:
    """All routes, as the router has them."""
    app = make_app(service_settings(), told_fleet(), OWN_TOKEN)
    for route in app.router.routes():
        assert route.resource is not None
        canonical = route.resource.canonical
        yield _Place(app[ROUTES][route.method, canonical], re.sub(r"{\w+}", "x", canonical))


PLACES = sorted(_places())
ROUTES_OF_THE_SERVICE = [one.route for one in PLACES]


def test_only_health_is_open_and_reading_is_no_change() -> None:
    """A new route that changes something needs more than `read`."""
    for route in ROUTES_OF_THE_SERVICE:
        assert (route.role is None) == (route.path in OPEN), route
        if route.path.startswith("/api/"):
            assert (route.role == "read") == (route.method in READS), route
            assert (route.role == "deploy") == ("/projects/" in route.path and route.method not in READS), route


def test_what_changes_something_by_scrapyds_api_needs_more_than_reading() -> None:
    """Its routes take all methods, so the endpoint's own one decides."""
    roles = {place.path: place.route.role for place in PLACES if place.path.endswith(".json")}
    for name, endpoint in ENDPOINTS.items():
        for slashes in ("/", "//"):
            assert (roles[f"{slashes}{name}.json"] == "read") == (endpoint.method == "GET"), name


@pytest.mark.parametrize("user", ["rea", "opa", "dee"])
async def test_every_route_lets_in_its_role_and_those_above(user: str) -> None:
    """All routes of the router: a role too low is 403, and nothing happens."""
    role: Role = {"rea": "read", "opa": "operate", "dee": "deploy"}[user]  # type: ignore[assignment]  # three of them
    header = basic(user, USERS[user]["password"])  # type: ignore[index]  # these have a role
    reaches: list[str] = []

    async def notes(request: web.Request) -> web.StreamResponse:
        reaches.append(request.path)
        return await reached(request)

    async with served(service_settings(users=USERS), notes) as client:
        origin = client.make_url("/").origin()
        for route, path in PLACES:
            if route.path in OPEN:
                continue
            assert route.role is not None
            allowed = ROLES.index(role) >= ROLES.index(route.role)
            for method in ("GET", "POST", "OPTIONS") if route.method == "*" else (route.method,):
                reaches.clear()
                got = await client.session.request(method, f"{origin}{path}", headers=header)
                assert (got.status, reaches) == ((200, [path]) if allowed else (403, [])), (method, route)


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
