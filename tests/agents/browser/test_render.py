"""Pages that need JavaScript, in a real Chromium: what they give, what they may reach, and how they end."""

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from crawlog.agents.browser.chromium import Chromium
from crawlog.agents.client.client import Client
from crawlog.agents.client.transport import HttpRequest
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import RenderRules, ScopeSpec
from crawlog.streams.http.answer import Answer
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.place import Places
from tests.support.fetching import World, changed, running  # a helper beside the tests
from tests.support.scripted_site import (
    METADATA,
    SCRIPTED,
    Site,
    browser,
    browsers,
    chromium,
    fresh,
    site,
    stage,
)

__all__ = ["browser", "browsers", "chromium", "fresh", "site"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def crawling(browser: Chromium, folder: Path, rules: RenderRules, **settings: Any) -> AsyncIterator[World]:
    """A fetch service with a log in memory; the job `r` has the rules."""
    settings = {name.replace(".", "__"): value for name, value in SCRIPTED.items()} | settings
    client = Client(changed(Settings(), {n.replace("__", "."): v for n, v in settings.items()}), "tester", lambda: True)
    with pytest.MonkeyPatch.context() as patch:
        async with running(folder, patch, client, **settings) as world:  # type: ignore[arg-type]  # the real client
            world.stage.states.places = Places(1)
            renderer = world.tasks.browsing._browser()
            renderer.browser = browser
            patch.setattr(renderer, "close", lambda: asyncio.sleep(0))
            world.job("r", render=rules)
            yield world


async def pages(world: World, *urls: str) -> dict[str, tuple[PageMeta, bytes]]:
    """The pages of URLs by URL, once the log has them all."""
    world.find(*urls, job="r")
    end = time.monotonic() + 180.0
    while not set(urls) <= world.became().keys():
        assert time.monotonic() < end, f"in vain; done: {world.became()}"
        await asyncio.sleep(0.02)
    return {meta.url: (meta, body) for meta, body in world.log.pages}


@pytest.mark.slow
async def test_pages_that_need_javascript_give_their_content(browser: Chromium, site: Site, tmp_path: Path) -> None:
    """Text and links that no HTML holds; each document and each script is asked for once."""
    urls = [f"http://127.0.0.1:{site.port}/page{n}" for n in range(3)]
    async with crawling(browser, tmp_path, RenderRules("auto")) as world:
        found = await pages(world, *urls)
    for n, url in enumerate(urls):
        meta, body = found[url]
        assert f'<a href="/more/{n}">thing {n}</a>'.encode() in body, meta
        assert (meta.rendered, meta.render_error, meta.http) == ("root", "", 200)
        assert meta.content_type == "text/html; charset=utf-8"
    asked = site.paths()
    assert asked.count("/app.js") == 1
    assert sorted(asked) == sorted(
        ["/app.js", *(f"/page{n}" for n in range(3)), *(f"/data?of=/page{n}" for n in range(3))]
    )


async def test_a_page_with_text_is_left_as_it_is(browser: Chromium, site: Site, tmp_path: Path) -> None:
    """And a page whose URL a rule names is not."""
    html = f"<title>x</title><p>{'word ' * 80}<script>document.title = 'rendered'</script>"
    site.pages |= {"/plain": html, "/rule": html}
    base = f"http://127.0.0.1:{site.port}"
    async with crawling(browser, tmp_path, RenderRules("auto", include=("/rule$",))) as world:
        found = await pages(world, f"{base}/plain", f"{base}/rule")
    meta, body = found[f"{base}/plain"]
    assert (meta.rendered, body) == ("", html.encode())
    meta, body = found[f"{base}/rule"]
    assert (meta.rendered, b"<title>rendered</title>" in body) == ("rule", True)


async def test_a_page_that_goes_elsewhere_is_a_redirect(browser: Chromium, site: Site, tmp_path: Path) -> None:
    """The frontier decides about the target; one that loads itself again and again is shown as it is."""
    site.pages |= {
        "/goes": "<script>location.href = '/page7#top'</script>",
        "/again": "<p>here<script>location.reload()</script>",
    }
    base = f"http://127.0.0.1:{site.port}"
    async with crawling(browser, tmp_path, RenderRules("always")) as world:
        found = await pages(world, f"{base}/goes", f"{base}/again")
        assert world.became()[f"{base}/goes"][0] == "redirected"
    meta, body = found[f"{base}/goes"]
    assert (meta.location, body) == (f"{base}/page7", b"")
    assert b"<p>here" in found[f"{base}/again"][1]
    assert sorted(site.paths()) == ["/again", "/goes"]


async def test_a_page_that_blanks_itself_stays_as_it_was_sent(browser: Chromium, site: Site, tmp_path: Path) -> None:
    """At once or later; the empty document is not its page."""
    leaves = "location = 'about:blank'"
    site.pages |= {
        "/blank": f"<a href=/page1>x</a><script>{leaves}</script>",
        "/later": f"<a href=/page1>x</a><script>setTimeout(() => {{ {leaves} }}, 50)</script>",
    }
    base = f"http://127.0.0.1:{site.port}"
    async with crawling(browser, tmp_path, RenderRules("always")) as world:
        found = await pages(world, f"{base}/blank", f"{base}/later")
    for path in ("/blank", "/later"):
        meta, body = found[base + path]
        assert (meta.rendered, meta.render_error, body) == ("", "render_gone", site.pages[path].encode())


async def test_robots_txt_holds_for_what_a_page_asks_for(browser: Chromium, site: Site, tmp_path: Path) -> None:
    """That of the host it is asked of, read once, whoever owns the host."""
    site.pages["/robots.txt"] = "User-agent: *\nDisallow: /data\n"
    html = "<div id=root></div><script src=http://127.0.0.2:%d/lib.js></script><script src=/app.js></script>"
    site.pages["/two"] = html % site.port
    async with crawling(browser, tmp_path, RenderRules("always"), robots__obey=True) as world:
        found = await pages(world, f"http://127.0.0.1:{site.port}/two")
    assert b"from lib" in found[f"http://127.0.0.1:{site.port}/two"][1]
    assert site.paths("127.0.0.1") == ["127.0.0.1/robots.txt", "127.0.0.1/two", "127.0.0.1/app.js"]
    assert site.paths("127.0.0.2") == ["127.0.0.2/robots.txt", "127.0.0.2/lib.js"]


async def test_a_page_asks_other_hosts_for_what_render_scope_lets_it(
    browser: Chromium, site: Site, tmp_path: Path
) -> None:
    """Here for scripts, and not for data."""
    elsewhere = f"http://127.0.0.2:{site.port}"
    site.pages["/two"] = (
        f"<div id=root></div><script src={elsewhere}/lib.js></script><script>fetch('{elsewhere}/told')</script>"
    )
    page = f"http://127.0.0.1:{site.port}/two"
    async with crawling(browser, tmp_path, RenderRules("always", scope="static")) as world:
        world.job("r", scope=ScopeSpec(names=("127.0.0.1",)), render=RenderRules("always", scope="static"), rev=2)
        found = await pages(world, page)
    assert b"from lib" in found[page][1]
    assert site.paths("127.0.0.2") == ["127.0.0.2/lib.js"]


async def test_requests_of_a_page_rest_as_pages_do(browser: Chromium, site: Site, tmp_path: Path) -> None:
    """The document, its script, its data, and the next page: one delay between each two."""
    urls = [f"http://127.0.0.1:{site.port}/page{n}" for n in range(2)]
    async with crawling(browser, tmp_path, RenderRules("always"), politeness__delay_s=0.4) as world:
        await pages(world, *urls)
    times = [at for at, _, _ in site.asked]
    assert len(times) == 5
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.39


async def test_a_rebalance_gives_a_page_in_the_browser_back(
    browser: Chromium, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a trace in the log, and without waiting for its script to end."""
    monkeypatch.setattr("crawlog.agents.fetch.fetch_agent.DRAIN_S", 0.1)
    site.pages["/endless"] = "<div id=root></div><script src=/lib.js></script><script>while (true);</script>"
    async with crawling(browser, tmp_path, RenderRules("always")) as world:
        world.find(f"http://127.0.0.1:{site.port}/endless", job="r")
        await until(lambda: "/lib.js" in site.paths())
        world.stage.rebalance_started()
        await world.fetcher.drain()
        assert not world.fetcher.places
        assert not world.fetcher._running
        assert (world.log.pages, world.log.dones) == ([], [])
    await until(lambda: not any(map(is_busy, browser.processes())))


WAYS = """<body><script>
const at = '%(target)s', get = way => at + way;
fetch(get('fetch')).catch(() => 0);
const asked = new XMLHttpRequest(); asked.open('GET', get('xhr')); asked.send();
new Image().src = get('image');
import(get('module')).catch(() => 0);
new Worker(URL.createObjectURL(new Blob([`fetch('${get('worker')}').catch(() => 0)`])));
navigator.serviceWorker?.register('/lib.js').catch(() => 0);
try { new WebSocket(at.replace('http', 'ws') + 'websocket') } catch {}
try { new EventSource(get('events')) } catch {}
try { new SharedWorker(get('shared')) } catch {}
navigator.sendBeacon(get('beacon'), 'x');
window.open(get('window'));
fetch(get('post'), {method: 'POST', body: 'x'}).catch(() => 0);
const call = new RTCPeerConnection({iceServers: [{urls: 'stun:%(address)s'}]});
call.createDataChannel('x'); call.createOffer().then(offer => call.setLocalDescription(offer));
</script><iframe src='%(target)sframe'></iframe><script src='%(target)sscript'></script>
<link rel=stylesheet href='%(target)sstyle'><link rel=prefetch href='%(target)sx'>
<link rel=preconnect href='%(target)s'>
<video src='%(target)svideo'></video><form id=f method=post action='%(target)sform' target=t></form>
<iframe name=t></iframe><script>f.submit()</script><p>shown"""
"""A page that tries all ways out that it has."""

GUARDED = ("fetch", "xhr", "image", "module", "worker", "frame", "script", "style")
"""Those that are asked for at all when nothing is blocked; each must meet the guard."""


class Trap(asyncio.DatagramProtocol):
    """Where nobody may come, by TCP or UDP."""

    def __init__(self) -> None:
        self.came: list[object] = []

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Somebody came."""
        self.came.append((data, addr))

    def connected(self, _from: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        """Somebody came."""
        self.came.append(to.get_extra_info("peername"))
        to.close()


async def test_no_way_out_leads_to_a_private_address(browser: Chromium, site: Site) -> None:
    """Loopback has a listener for TCP and UDP that would tell."""
    trap = Trap()
    server = await asyncio.start_server(trap.connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    udp, _ = await loop.create_datagram_endpoint(lambda: trap, local_addr=("127.0.0.1", port))
    ways = WAYS % {"target": f"http://127.0.0.1:{port}/", "address": f"127.0.0.1:{port}"}
    async with stage(browser, network__allow_private=False, render__block=()) as one:
        answer = await one.show(ways, "http://example.com/")
    assert b"shown" in answer.body
    refused = {url.rpartition("/")[2]: why for url, why in one.became.items() if "127.0.0.1" in url}
    assert {way: refused.get(way) for way in GUARDED} == dict.fromkeys(
        GUARDED, "private_address: private address 127.0.0.1"
    )
    assert not {"post", "beacon", "form", "websocket", "window"} & refused.keys()
    udp.close()
    server.close()
    assert trap.came == []


READS = """<p id=p></p><script>
const asks = %s;
Promise.all(asks.map(([url, how]) => fetch(url, how).then(answer => answer.text()).catch(() => 'closed')))
  .then(all => p.textContent = all.join('|'));
</script>"""


async def test_what_another_origin_answers_is_read_as_that_origin_says(browser: Chromium, site: Site) -> None:
    """With or without credentials, and where a redirect of the page's own origin leads there."""
    own, other = f"http://127.0.0.1:{site.port}", f"http://127.0.0.2:{site.port}"
    told, allow = f"{other}/told?", "Access-Control-Allow-Origin="
    known = {"credentials": "include"}
    asks = [
        (f"{own}/told", {}),
        (told, {}),
        (f"{told}{allow}*", {}),
        (f"{told}{allow}{own}", {}),
        (f"{told}{allow}http://b.com", {}),
        (f"{told}{allow}*", known),
        (f"{told}{allow}{own}", known),
        (f"{told}{allow}{own}&Access-Control-Allow-Credentials=true", known),
        (f"{own}/to?Location={other}/told", {}),
        (f"{own}/to?Location={other}/told%3F{allow}*", {}),
        (f"{other}/to?Location={own}/told", {}),
    ]
    async with stage(browser) as one:
        answer = await one.show(READS % json.dumps(asks), f"{own}/x")
    shown = answer.body.decode().partition('<p id="p">')[2].partition("</p>")[0]
    may, never = f"told {own}", "closed"
    assert shown.split("|") == ["told none", never, may, may, never, never, never, may, never, may, never]


async def test_a_script_reads_what_its_own_origin_says_in_headers(browser: Chromium, site: Site) -> None:
    """Front ends page by them. No cookie comes by a header, and those of another origin stay its own."""
    own, other = f"http://127.0.0.1:{site.port}", f"http://127.0.0.2:{site.port}"
    asked = "/told?X-Total=42&Set-Cookie=a%3Db&Access-Control-Allow-Origin=*"
    asks = [own + asked, other + asked, f"{own}/to?Location={other}{asked.replace('&', '%26')}"]
    html = f"""<p id=p></p><script>Promise.all({json.dumps(asks)}.map(url => fetch(url))).then(all =>
        p.textContent = all.map(answer => answer.headers.get('X-Total')).join('|') + '|' + document.cookie)</script>"""
    async with stage(browser) as one:
        answer = await one.show(html, f"{own}/x")
    assert b'<p id="p">42|||</p>' in answer.body


@pytest.mark.parametrize("name", ["localhost", pytest.param("127.0.0.1", marks=pytest.mark.long)])
async def test_a_page_from_a_public_address_has_nothing_from_a_private_one(
    browser: Chromium, site: Site, name: str
) -> None:
    """By name and by address, though the crawl itself may go there."""
    target = f"http://{name}:{site.port}/told?Access-Control-Allow-Origin=*&"
    async with stage(browser, render__block=()) as one:
        answer = await one.show(WAYS % {"target": target, "address": "127.0.0.1:9"}, "http://example.com/")
        assert b"shown" in answer.body
    assert site.asked == []


async def test_metadata_is_out_of_reach_by_name_and_by_redirect_too(
    browser: Chromium, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where private addresses are allowed."""
    base = f"http://127.0.0.1:{site.port}"
    html = f"<p>shown<script>fetch('{METADATA}'); fetch('{base}/away'); fetch('http://rebind.example/x')</script>"
    async with stage(browser) as one:
        resolver = one.client._resolver

        async def names(host: str, _port: int = 0, _family: int = 0) -> list[dict[str, Any]]:
            assert host == "rebind.example"
            return [{"hostname": host, "host": "169.254.169.254", "port": 0, "family": 2, "proto": 0, "flags": 0}]

        monkeypatch.setattr(resolver._resolver, "resolve", names)
        answer = await one.show(html, f"{base}/x")
    assert b"shown" in answer.body
    assert one.became[METADATA] == "private_address: metadata address 169.254.169.254"
    assert one.became[f"{base}/away"] == "302"
    assert "metadata address 169.254.169.254" in one.became["http://rebind.example/x"]


async def test_nothing_is_changed_on_a_server(browser: Chromium, site: Site) -> None:
    """No form, beacon or request with another method leaves; what is read is read."""
    base = f"http://127.0.0.1:{site.port}"
    async with stage(browser, render__block=()) as one:
        await one.show(WAYS % {"target": f"{base}/", "address": f"127.0.0.1:{site.port}"}, f"{base}/x")
    assert {method for _, method, _ in site.asked} == {"GET"}
    assert "/fetch" in site.paths()


async def test_a_page_whose_script_never_ends_is_stopped(
    browser: Chromium, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays as it was sent, its process is gone, and the browser goes on."""
    monkeypatch.setattr("crawlog.agents.browser.visit.TAKE_ENDLESS_S", 1.0)
    html = "<p>sent<script>while (true);</script>"
    async with stage(browser, render__timeout_s=3.0) as one:
        answer = await one.show(html, "http://example.com/")
        assert (answer.rendered, answer.render_error, answer.body) == ("", "render_timeout", html.encode())
        await until(lambda: not any(map(is_busy, browser.processes())))
    async with stage(browser) as one:
        assert b"next" in (await one.show("<script>document.write('next')</script>", "http://example.com/")).body


async def test_a_page_that_never_stops_asking_is_taken_as_it_is(browser: Chromium, site: Site) -> None:
    """At the limit of time, and at that of requests; the mark says which."""
    base = f"http://127.0.0.1:{site.port}"
    html = "<p id=n><script>setInterval(() => fetch('/lib.js?' + Math.random()).then(() => n.append('.')), %d)</script>"
    async with stage(browser, render__timeout_s=5.0, render__settle_s=4.0, render__max_requests=10) as one:
        slow = await one.show(html % 60, f"{base}/x")
    async with stage(browser, render__settle_s=4.0, render__max_requests=10) as one:
        fast = await one.show(html % 20, f"{base}/x")
    assert (slow.rendered, slow.render_error) == ("always", "render_timeout")
    assert (fast.rendered, fast.render_error) == ("always", "render_requests")
    assert b"..........</p>" in slow.body
    assert len(site.asked) == 20


async def test_a_page_that_ends_with_requests_under_way_leaves_no_task(browser: Chromium, site: Site) -> None:
    """Neither for requests that wait for their answers nor for those beyond the most that a page may send."""
    base = f"http://127.0.0.1:{site.port}"
    async with stage(browser, render__timeout_s=1.0) as one:

        async def never(request: HttpRequest) -> Answer:
            await asyncio.sleep(600.0)
            return Answer(None)

        one.client.get = never  # type: ignore[method-assign]  # a slow site
        slow = await one.show("<p>here<script>fetch('/a'); fetch('/b')</script>", f"{base}/x")
    async with stage(browser, render__max_requests=1) as one:
        html = "<p>here<script>for (let n = 0; n < 150; n++) fetch('/a' + n)</script>"
        flood = await one.show(html, f"{base}/x")
    assert (slow.render_error, flood.render_error) == ("render_timeout", "render_requests")
    left = [task for task in asyncio.all_tasks() if "_on_route" in repr(task)]  # Playwright's
    await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 10.0)


async def test_open_shadow_roots_are_part_of_the_page(browser: Chromium, site: Site) -> None:
    """As the templates that declare them: their links count."""
    root = "document.querySelector('x-y').attachShadow({mode: 'open'})"
    html = f"<x-y></x-y><script>{root}.innerHTML = '<a href=/in>in</a>'</script>"
    async with stage(browser) as one:
        answer = await one.show(html, "http://example.com/")
    assert b'<template shadowrootmode="open"><a href="/in">in</a></template>' in answer.body


async def test_a_page_that_changes_its_url_has_its_links_relative_to_that(browser: Chromium, site: Site) -> None:
    """As a browser follows them; a page that keeps its URL is as it stands."""
    html = "<div id=root></div><script>{}; root.innerHTML = '<a href=in>in</a>'</script>"
    changes = html.replace("{}", "history.replaceState({}, '', '/shop/tea?x=1#top')")
    async with stage(browser) as one:
        moved, kept = [await one.show(page, "http://example.com/") for page in (changes, html.replace("{}", ""))]
    base, *_ = re.findall(rb'<base href="([^"]*)">', moved.body)
    assert base == b"http://example.com/shop/tea?x=1#top"
    assert b'<a href="in">' in moved.body
    assert b"<base" not in kept.body


@pytest.mark.parametrize(
    ("encoding", "head", "href"),
    [
        ("cp1251", "<meta charset=windows-1251>", "http://example.com/?q=%F7%E0%E9"),
        ("utf-8", "", "?q=чай"),
    ],
)
async def test_a_page_has_the_encoding_that_it_has_without_a_browser(
    browser: Chromium, site: Site, encoding: str, head: str, href: str
) -> None:
    """Its queries too are written in it. Chromium takes UTF-8 that nobody declares for another encoding."""
    html = f"{head}<title>чай и кофе</title><p>вот чай<a href='?q=чай'>чай</a>"
    async with stage(browser) as one:
        answer = await one.show(html.encode(encoding), "http://example.com/")
    assert f'<a href="{href}">чай</a>' in answer.body.decode()
    assert "<title>чай и кофе</title>" in answer.body.decode()


async def test_a_page_that_reloads_itself_is_shown_again(browser: Chromium, site: Site) -> None:
    """From the bytes that are here, with what it noted before; one that does so for ever ends in time."""
    noted = "if (sessionStorage.seen) document.body.append('seen'); else { sessionStorage.seen = 1; location.reload() }"
    ever = "document.body.append(sessionStorage.n = 1 + Number(sessionStorage.n || 0), ' times'); location.reload()"
    async with stage(browser) as one:
        shown = [await one.show(f"<body><script>{does}</script>", "http://example.com/") for does in (noted, ever)]
    once, endless = shown
    assert b"</script>seen" in once.body
    assert b"3 times" in endless.body
    assert (once.location, endless.location, endless.render_error) == ("", "", "")
    assert site.asked == []


@pytest.mark.long
async def test_two_pages_at_a_time_take_less_than_700_mb(browser: Chromium, site: Site) -> None:
    """All processes of Chromium together, shared memory counted once."""
    html = "<script>window.kept = []; for (let n = 0; n < 3000; n++) { const e = document.createElement('p');"
    html += " e.textContent = 'paragraph ' + n; document.body.append(e); kept.push({n, text: e.textContent}) }</script>"
    most = 0
    async with stage(browser) as one:
        both = asyncio.gather(*(one.show(f"<body>{html}", f"http://host{n}.com/") for n in range(2)))
        while not both.done():
            if browser.pages == 2:
                most = max(most, sum(map(pss_bytes, browser.processes())))
            await asyncio.sleep(0.1)
        assert all(b"paragraph 2999" in answer.body for answer in await both)
    assert 50 << 20 < most <= 700 << 20


async def test_a_page_that_takes_too_much_memory_is_ended_alone(browser: Chromium, site: Site) -> None:
    """The browser goes on."""
    html = "<p>sent<script>const all = []; setInterval(() => all.push(new Uint8Array(16 << 20).fill(1)), 30)</script>"
    async with stage(browser, render__settle_s=15.0) as one:
        watching = asyncio.create_task(one.renderer._watch(browser))
        answer = await one.show(html, "http://example.com/")
        watching.cancel()
        assert (answer.rendered, answer.render_error) == ("", "render_memory")
        assert answer.body == html.encode()
        assert browser.is_alive


async def test_a_browser_that_dies_is_started_again_and_its_page_tried_once_more(site: Site) -> None:
    """Nobody notices but the log."""
    base = f"http://127.0.0.1:{site.port}"
    async with stage(None) as one:
        showing = asyncio.create_task(one.show("<div id=root></div><script src=/app.js></script>", f"{base}/page3"))
        await until(lambda: site.asked)
        first = one.renderer.browser
        assert first is not None
        for process in first.processes():
            process.kill()
        answer = await showing
        assert b"thing 3" in answer.body
        assert (answer.rendered, answer.render_error) == ("always", "")
        second = one.renderer.browser
        assert second is not None
        assert second is not first
        processes = second.processes()
    await until(lambda: not any(process.is_running() for process in processes))


@pytest.mark.long
async def test_a_driver_that_dies_is_started_again_with_its_browser(site: Site) -> None:
    """The next page is rendered by the second browser."""
    async with stage(None) as one:
        await one.show("<p>first", "http://example.com/")
        first = one.renderer.browser
        assert first is not None
        first.drivers[0].kill()
        answer = await one.show("<script>document.write('next')</script>", "http://example.com/")
        assert (answer.rendered, answer.render_error) == ("always", "")
        assert b"next" in answer.body
        assert one.renderer.browser is not first
        assert not first.is_alive


ORPHAN = """
import asyncio, os, sys, time
sys.path.insert(0, sys.argv[1])
from tests.agents.browser.test_render import stage
async def main():
    async with stage(None) as one:
        await one.show("<p>x", "http://example.com/")
        with open(sys.argv[2], "w") as pids:
            print(*(p.pid for p in one.renderer.browser.processes()), file=pids)
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def test_the_browser_dies_with_its_worker(tmp_path: Path, site: Site) -> None:
    """Even if that is killed: no process is left, and no profile."""
    script = [
        sys.executable,
        "-c",
        ORPHAN,
        str(Path(__file__).parents[3]),
        str(tmp_path / "pids"),
    ]
    folder = Path(tempfile.mkdtemp(prefix="crawlog"))  # a path as short as a socket's must be
    done = await asyncio.to_thread(
        subprocess.run, script, capture_output=True, text=True, env={"TMPDIR": str(folder), "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) > 2
    await until(lambda: not any(map(psutil.pid_exists, pids)))
    await until(lambda: not list(folder.glob("playwright*profile*")))
    shutil.rmtree(folder)


def pss_bytes(process: psutil.Process) -> int:
    """What a process takes, memory that it shares counted in parts."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return 0


def is_busy(process: psutil.Process) -> bool:
    """Whether it computes without a pause."""
    with contextlib.suppress(psutil.Error):
        return process.cpu_percent(0.05) > 50
    return False


async def until(holds: Callable[[], Any], limit_s: float = 90.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + limit_s
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < end, f"in vain for {limit_s} s"
        await asyncio.sleep(0.05)
