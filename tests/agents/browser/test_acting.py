"""Pages with actions, in a real Chromium: what is done, what it returns, what it may reach, how it fails."""

import pytest

from crawlog import actions
from crawlog.agents.browser.chromium import Chromium
from crawlog.schemas.requests import Action
from crawlog.streams.http.answer import Answer
from crawlog.streams.page_actions import action_of
from tests.support.scripted_site import Site, browser, browsers, chromium, fresh, site, stage

__all__ = ["browser", "browsers", "chromium", "fresh", "site"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS = """<!doctype html><title>Rows</title><ul></ul><script>
let page = 0;
const more = () => fetch('/data?of=/page' + ++page).then(answer => answer.json()).then(data => {
  for (let row = 0; row < 10; row++)
    document.querySelector('ul').insertAdjacentHTML('beforeend', '<li style="height: 200px">' + data.name + '.' + row);
});
more();
addEventListener('scroll', () => { if (page < 4 && scrollY + innerHeight >= document.body.scrollHeight - 1) more(); });
</script>"""


async def shown(browser: Chromium, site: Site, path: str, *done: Action, **settings: object) -> Answer:
    """What becomes of a page of the site with these actions."""
    async with stage(browser, **settings) as one:
        return await one.show(site.pages[path], f"http://127.0.0.1:{site.port}{path}", *done)


@pytest.mark.parametrize("until", [None, "li:nth-child(40)"])
async def test_a_page_that_grows_is_scrolled_to_its_end(browser: Chromium, site: Site, until: str | None) -> None:
    """Until an element is there, or until it grows no more."""
    site.pages["/rows"] = ROWS
    assert (await shown(browser, site, "/rows")).body.count(b"</li>") == 10
    answer = await shown(browser, site, "/rows", actions.wait_for("li"), actions.scroll(until))
    assert (answer.body.count(b"</li>"), answer.error, len(answer.results)) == (40, "", 2)


async def test_what_actions_return_comes_with_the_page(browser: Chromium, site: Site) -> None:
    """Values of `evaluate` as JSON, the bytes of a screenshot, nothing of the others; one result each."""
    site.pages["/form"] = "<input id=name><select id=kind><option>tea<option>coffee</select><p id=said hidden>x"
    read = "[...document.querySelectorAll('input, select')].map(one => one.value)"
    done = (
        actions.fill("#name", "Ann"),
        actions.select("#kind", "coffee"),
        actions.press("#name", "End"),
        actions.evaluate(read),
        actions.evaluate("({a, b}) => ({sum: a + b, at: new Date(0), none: undefined})", {"a": 1, "b": 2}),
        actions.evaluate("undefined"),
        actions.screenshot(),
        action_of("set_viewport_size", [{"width": 300, "height": 200}]),
        actions.evaluate("innerWidth"),
    )
    answer = await shown(browser, site, "/form", *done)
    values = [one.value for one in answer.results]
    assert values[:3] == [None, None, None]
    assert values[3:6] == [["Ann", "coffee"], {"sum": 3, "at": "1970-01-01T00:00:00.000Z"}, None]
    assert values[6].startswith(b"\x89PNG")
    assert values[7:] == [None, 300]


async def test_a_driven_page_goes_where_its_actions_lead(browser: Chromium, site: Site) -> None:
    """By a link, by a form that is posted and redirected; each URL is asked for once, and the last one is shown."""
    site.pages |= {
        "/first": "<a id=on href=/second>on</a>",
        "/second": "<form method=post action='/to?Location=/third'><input name=user><button>go</button></form>",
        "/third": "<p id=end>the end",
    }
    done = actions.click("#on"), actions.fill("input", "ann"), actions.click("button"), actions.wait_for("#end")
    answer = await shown(browser, site, "/first", *done)
    assert (answer.error, answer.detail, answer.location) == ("", "", "")
    assert b"the end" in answer.body
    assert answer.shown_url == f"http://127.0.0.1:{site.port}/third"
    asked = [(method, what.partition("/")[2]) for _, method, what in site.asked]
    assert asked == [("GET", "second"), ("POST", "to?Location=/third"), ("GET", "third")]


async def test_a_script_of_a_driven_page_posts_to_its_own_origin_alone(browser: Chromium, site: Site) -> None:
    """With its own headers; to another origin nothing is sent, and no page without actions sends anything."""
    other = f"http://127.0.0.2:{site.port}/data?of=/page2"
    post = "url => fetch(url, {method: 'POST', headers: {'X-Token': 't'}}).then(one => one.status, () => 'refused')"
    site.pages["/quiet"] = "<p>quiet"
    done = [actions.evaluate(post, url) for url in ("/data?of=/page1", other)]
    answer = await shown(browser, site, "/quiet", *done)
    assert [one.value for one in answer.results] == [200, "refused"]
    assert [(method, what) for _, method, what in site.asked] == [("POST", "127.0.0.1/data?of=/page1")]


@pytest.mark.parametrize(
    ("done", "reason"),
    [
        (
            [actions.wait(0.01), actions.wait_for(".none", timeout=0.2)],
            "2 wait_for_selector('.none'): Page.wait_for_sel",
        ),
        ([actions.scroll(".none", timeout=0.3)], "1 scroll('.none'): not there after 0.3 s, at a height of "),
        (
            [actions.click("#off")],
            "1 click('#off'): GET http://169.254.169.254/latest/meta-data/ failed: private_addre",
        ),
        ([actions.evaluate("nothing.there")], "1 evaluate('nothing.there'): Page.evaluate_handle: ReferenceError"),
        ([actions.evaluate("'x'.repeat(2e6)")], "its result has more than 1,048,576 characters"),
        (
            [actions.evaluate("'x'.repeat(6e5)")] * 2,
            "2 evaluate(\"'x'.repeat(6e5)\"): what the actions return has more",
        ),
        ([actions.evaluate("let a = []; for (let n = 0; n < 2e5; n++) a = [a]; a")], "evaluate("),
        ([Action("goto", {"url": "file:///etc/passwd"})], "no page of the browser shows a file of the worker"),
        ([Action("launch")], "1: 'launch' is no action; there are check, click, "),
        (
            [Action("screenshot", {"path": "/tmp/x.png"})],
            "1 screenshot: screenshot: the argument 'path' is refused: no action reads",
        ),
        ([Action("wait_for_selector", {"selector": 7})], "1 wait_for_selector(7): "),
    ],
)
async def test_an_action_that_fails_fails_its_page(
    done: list[Action], reason: str, browser: Chromium, site: Site
) -> None:
    """The reason names the action and its selector; what it fills in is not named. No body is kept."""
    site.pages["/page"] = "<p>text<a id=off href=http://169.254.169.254/latest/meta-data/>off</a>"
    answer = await shown(browser, site, "/page", *done)
    assert (answer.http, answer.error, answer.kept, answer.body, answer.rendered) == (200, "action", False, b"", "")
    assert reason in answer.detail


async def test_a_page_cannot_fill_the_worker_by_what_it_returns(browser: Chromium, site: Site) -> None:
    """A page that replaces JSON.stringify is measured all the same."""
    site.pages["/large"] = "<p>x<script>JSON.stringify = () => 'x'.repeat(2e8)</script>"
    answer = await shown(browser, site, "/large", actions.evaluate("1"))
    assert "more than 1,048,576 characters" in answer.detail


async def test_actions_have_a_time_together(browser: Chromium, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some times that of a page, however long each may take."""
    monkeypatch.setattr("crawlog.agents.browser.visit.TIMES", 0.01)
    site.pages["/page"] = "<p>text"
    answer = await shown(browser, site, "/page", actions.wait(600))
    assert answer.detail == "1 wait_for_timeout(600000): the actions took more than 0.01 times render.timeout_s"
