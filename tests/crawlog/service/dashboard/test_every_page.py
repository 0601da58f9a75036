"""Every page of the dashboard in a real Chromium, on a log full of markup: it shows it, and nothing happens.

Some pages stand for all in the usual suite; the long one opens each.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from playwright.async_api import Browser

from tests.support.dashboard import OLGA, RITA, ShownFleet, Viewer, page_path, page_routes, routes, viewer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.broker, pytest.mark.slow]

QUICK = {"/ui/", "/ui/jobs/{job}", "/ui/url"}

PAGES = [pytest.param(one, marks=() if one in QUICK else (pytest.mark.long,), id=one) for one in page_routes()]

# The next element that Tab reaches: its name, and whether its focus can be seen; no name behind the last one.
FOCUSED = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  if (one === document.body) return ["", true];
  return [one.id || one.name || one.innerText || one.tagName, style.outlineStyle !== "none" || one.id === "main"];
}"""

# Elements that a click changes something with.
ACTIONS = "main button:visible, main summary:visible, main input:not([type=hidden]):visible, main select:visible"


@pytest.mark.parametrize("route", PAGES)
async def test_markup_has_no_effect_on_any_page(fleet: ShownFleet, ann: Viewer, route: str) -> None:
    """No script of the log runs, the policy stops nothing, nothing comes from elsewhere; a reader has no action."""
    path = page_path(fleet, route)
    await ann.goto(path)
    assert await ann.page.evaluate("window.hit") is None
    assert ann.faults == []
    if routes("GET")[route] == "read":
        with fleet.open(path, user=RITA) as answer:
            assert b'method="post"' not in answer.read()
    else:
        assert fleet.status(path, user=RITA) == 403


@pytest.mark.parametrize("route", PAGES)
async def test_every_page_fits_and_is_accessible(fleet: ShownFleet, ann: Viewer, route: str) -> None:
    """On a phone and a desk, light and dark; axe-core finds no serious fault."""
    if find_spec("axe_playwright_python") is None:
        pytest.skip("axe-playwright-python is not installed")
    axe = import_module("axe_playwright_python.base").AXE_SCRIPT
    await ann.goto(page_path(fleet, route))
    await ann.page.evaluate(axe)
    for theme in ("light", "dark"):
        await ann.page.emulate_media(color_scheme=theme)
        for width in (380, 1440):
            await ann.page.set_viewport_size({"width": width, "height": 900})
            assert await ann.page.evaluate("document.documentElement.scrollWidth") <= width, (theme, width)
        found: dict[str, Any] = await ann.page.evaluate("axe.run()")
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in serious] == [], theme


@pytest.mark.parametrize("route", PAGES)
async def test_the_keyboard_reaches_every_action_and_shows_where_it_is(
    fleet: ShownFleet, ann: Viewer, route: str
) -> None:
    """By Tab alone."""
    await ann.page.set_viewport_size({"width": 1440, "height": 900})
    await ann.goto(page_path(fleet, route))
    wanted = await ann.page.locator(ACTIONS).count()
    await ann.page.evaluate(
        "document.addEventListener('focusin', (one) => { one.target.dataset.reached = '1'; }); document.body.focus()"
    )
    for _ in range(400):
        await ann.page.keyboard.press("Tab")
        name, is_seen = await ann.page.evaluate(FOCUSED)
        if not name:
            break
        assert is_seen, name
    reached = await ann.page.locator(ACTIONS).evaluate_all("all => all.filter(one => one.dataset.reached).length")
    groups = await ann.page.locator("main input[type=radio]:visible").count()
    assert reached >= wanted - groups


@pytest.mark.parametrize("route", PAGES)
async def test_every_page_shows_the_same_without_javascript(fleet: ShownFleet, browser: Browser, route: str) -> None:
    """It has its heading and its parts, and nothing that only a script would fill."""
    async with viewer(browser, fleet.url, java_script_enabled=False) as one:
        await one.goto(page_path(fleet, route))
        assert await one.page.locator("h1").count() == 1
        assert one.faults == []


async def test_no_form_acts_without_its_token_its_role_or_from_elsewhere(fleet: ShownFleet) -> None:
    """Over all targets of forms, with names that do not exist."""
    token = fleet.token("/ui/jobs")
    targets = {path: role for path, role in routes("POST").items() if path.startswith("/ui")}
    assert len(targets) > 20
    users: dict[str, list[tuple[str, str]]] = {"read": [], "operate": [RITA], "deploy": [RITA, OLGA]}
    for route, role in targets.items():
        path = route.replace("{", "").replace("}", "")
        assert fleet.sent(path, {"back": "/ui/jobs"}) == 403, path
        assert fleet.sent(path, {"token": "0" * 64}) == 403, path
        assert fleet.sent(path, {"token": token}, headers={"Origin": "http://evil.example"}) == 403, path
        assert fleet.sent(path, {"token": token}, headers={"Sec-Fetch-Site": "cross-site"}) == 403, path
        assert role is not None, path
        for user in users[role]:
            assert fleet.sent(path, {"token": token}, user=user) == 403, (path, user)
