"""Who may use Scrapyd's API and pages, and what a page of another site can make a browser do with them: nothing."""

from collections.abc import Iterator

import pytest

from crawlog.service.scrapyd import ENDPOINTS
from crawlog.service.scrapyd_fleet import ScrapydJob
from tests.support.scrapyd_service import ToldFleet, ask, served

USERS = {
    "rita": {"password": "r", "role": "read"},
    "otto": {"password": "o", "role": "operate"},
    "dora": {"password": "d", "role": "deploy"},
}
PAGES = ("/jobs", "/logs/", "/items/", "/logs/quotes/one/r.log", "/pages.css")


@pytest.fixture
def fleet() -> ToldFleet:
    """A running job."""
    return ToldFleet(all_jobs={"r": ScrapydJob("r", "quotes", "one", "running", 1.0, 2.0)})


@pytest.fixture
def address(fleet: ToldFleet) -> Iterator[str]:
    """Of a service with a user of each role."""
    with served(fleet, service__users=USERS) as url:
        yield url


def _cancel(address: str, **headers: str) -> int:
    data = {"project": "quotes", "job": "r"}
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    got = ask("POST", f"{address}/cancel.json", data=data, headers=headers, auth=("otto", "o"), allow_redirects=False)
    return got.status_code


@pytest.mark.parametrize("auth", [None, ("baduser", "badpass"), ("rita", "o"), ("", "t0ken")])
def test_wrong_credentials_are_unauthorized(auth: tuple[str, str] | None, address: str) -> None:
    """In the word of Scrapyd, for every path. The data folder's token counts only where there are no users."""
    for path in [*(f"/{name}.json" for name in ENDPOINTS), *PAGES]:
        method = "POST" if ENDPOINTS.get(path[1:-5]) and ENDPOINTS[path[1:-5]].method == "POST" else "GET"
        got = ask(method, address + path, auth=auth)
        assert (got.status_code, got.text) == (401, "Unauthorized")
        assert got.headers["WWW-Authenticate"].lower().startswith("basic realm=")


@pytest.mark.parametrize(
    ("user", "may"),
    [
        (("rita", "r"), {"read"}),
        (("otto", "o"), {"read", "operate"}),
        (("dora", "d"), {"read", "operate", "deploy"}),
    ],
)
def test_each_endpoint_needs_its_role(user: tuple[str, str], may: set[str], fleet: ToldFleet, address: str) -> None:
    """Whatever the method: a HEAD or OPTIONS tells nothing to those who may not."""
    for name, endpoint in ENDPOINTS.items():
        for method in (endpoint.method, "HEAD", "OPTIONS"):
            got = ask(method, f"{address}/{name}.json", auth=user)
            assert (got.status_code != 403) == (endpoint.role in may), (name, method)
    assert fleet.told == []


def test_a_cancelled_job_has_the_name_of_its_user(fleet: ToldFleet, address: str) -> None:
    """Commands note who gave them."""
    assert _cancel(address) == 200
    assert fleet.told == [("cancel", "r", "otto")]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
        {"Sec_Fetch_Site": "same-site"},
        {"Host": "evil.test"},
    ],
)
def test_a_page_of_another_site_cancels_nothing(headers: dict[str, str], fleet: ToldFleet, address: str) -> None:
    """By its form, by its script, or by a name that leads to us (DNS rebinding)."""
    assert _cancel(address, **headers) in {403, 421}
    assert fleet.told == []


def test_a_button_leads_back_to_the_page_of_jobs(address: str) -> None:
    """A browser that pressed it gets no JSON; below the path of a proxy, if there is one."""
    navigated = {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate", "Origin": address}
    data = {"project": "quotes", "job": "r"}
    headers = {name.replace("_", "-"): value for name, value in navigated.items()} | {"X-Forwarded-Prefix": "/path/to"}
    got = ask("POST", f"{address}/cancel.json", data=data, headers=headers, auth=("otto", "o"), allow_redirects=False)
    assert (got.status_code, got.headers["Location"]) == (303, "/path/to/jobs")


def test_links_begin_with_the_prefix_of_a_proxy(address: str) -> None:
    """On every page; a prefix that is no path is refused."""
    prefix = {"X-Forwarded-Prefix": "/path/to"}
    page = ask("GET", f"{address}/jobs", headers=prefix, auth=("otto", "o")).text
    for link in ("/logs/quotes/one/r.log", "/items/quotes/one/r.jl", "/cancel.json", "/pages.css", "/"):
        assert f'"/path/to{link}"' in page
    moved = ask("GET", f"{address}/logs", headers=prefix, auth=("rita", "r"), allow_redirects=False)
    assert moved.headers["Location"] == "/path/to/logs/"
    for wrong in ("//evil.test", '/"><script>', "javascript:alert(1)", "/a/"):
        assert (
            ask("GET", f"{address}/jobs", headers={"X-Forwarded-Prefix": wrong}, auth=("rita", "r")).status_code == 400
        )


def test_who_may_only_look_sees_no_button(fleet: ToldFleet, address: str) -> None:
    """It would only be refused."""
    fleet.all_jobs = {"one": ScrapydJob("one", "quotes", "spider", "running", 1.0)}
    shown = {user: 'value="Cancel"' in ask("GET", f"{address}/jobs", auth=(user, user[0])).text for user in USERS}
    assert shown == {"rita": False, "otto": True, "dora": True}
