"""Every page of the dashboard in a real Chromium, on a log full of markup: it shows it, and nothing happens."""

import pytest

from tests.support.dashboard import RITA, ShownFleet, Viewer, page_path, page_routes, routes

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.broker, pytest.mark.slow]


# These stand for all pages in the usual suite; the long one opens each.
QUICK = {"/ui/", "/ui/jobs/{job}", "/ui/url"}


@pytest.mark.parametrize(
    "route", [pytest.param(one, marks=() if one in QUICK else (pytest.mark.long,), id=one) for one in page_routes()]
)
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
