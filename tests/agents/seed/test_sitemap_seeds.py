"""Sitemaps in a crawl and as seeds, against a site on loopback that nobody links to."""

import asyncio
import gzip
import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import brotli
import pytest

from crawlog.agents.seed.line import found_on
from crawlog.agents.seed.sitemap_seeds import collect
from crawlog.agents.seed.source import Source
from crawlog.cli.arguments import requested
from crawlog.jobs.request import job_name
from crawlog.jobs.submit import wanted_of
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import CanonicalRules, JobSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.html.links import Links
from crawlog.streams.requests.request import basic
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import Sources, resolve
from crawlog.streams.spiders.default import parse_listing
from crawlog.streams.url.canonical import Canonicaliser
from crawlog.streams.url.place import Places
from tests.support.processes import crawlog, ended
from tests.support.sites import Answer, Threaded, sites
from tests.support.sites import Site as Server


class Site:
    """Pages that only sitemaps name; robots.txt names the index, the index a gzipped sitemap and a feed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._server = Threaded(self._answer)
        self.url = self._server.origin
        listed = "".join(f"<url><loc>/{n}</loc><lastmod>20{n:02}</lastmod></url>" for n in range(1, 6))
        elsewhere = "<url><loc>http://elsewhere.example/</loc><priority>1</priority></url>"
        feed = "<rss><item><link>/6</link></item><item><link>/secret/7</link></item></rss>"
        index = "".join(f"<sitemap><loc>{file}</loc></sitemap>" for file in ("/index.xml", "/pages.xml.gz", "/feed"))
        self.files = {
            "/": ("text/html", b"<title>home</title>"),
            "/robots.txt": ("text/plain", b"User-agent: *\nDisallow: /secret\nSitemap: /old.xml\nSitemap: /gone.xml"),
            "/index.xml": ("application/xml", f"<sitemapindex>{index}</sitemapindex>".encode()),
            "/pages.xml.gz": ("application/x-gzip", gzip.compress(f"<urlset>{listed}{elsewhere}".encode())),
            "/feed": ("application/rss+xml", feed.encode()),
            **{f"/{n}": ("text/html", f"<title>{n}</title>".encode()) for n in range(1, 7)},
        }

    def _answer(self, path: str) -> Answer:
        self.asked.append(path)
        if path == "/old.xml":
            return 302, "/index.xml", b""
        kind, body = self.files.get(path, ("text/html", b""))
        return 200 if path in self.files else 404, kind, body

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


@pytest.fixture
def site() -> Iterator[Site]:
    """A site of this test alone."""
    made = Site()
    yield made
    made.close()


@pytest.fixture
def settings() -> Settings:
    """Loopback may be asked, without a rest."""
    return resolve(Sources(flags={"network.allow_private": True, "politeness.delay_s": 0.0}, environ={})).settings


@pytest.mark.broker
@pytest.mark.slow
def test_a_crawl_follows_sitemaps_and_writes_no_rows_for_them(site: Site, tmp_path: Path, cluster: Settings) -> None:
    """Pages in scope, by robots.txt; an index of itself, a redirect, a missing one do no harm."""
    rules = ["network.allow_private=true", "politeness.delay_s=0.01", "sitemaps.follow=true"]
    rules.append(f"kafka.prefix={cluster.kafka.prefix}")
    options = ["--bootstrap", cluster.kafka.bootstrap, *(f"-s{rule}" for rule in rules)]
    code, summary, err = ended(crawlog("run", f"{site.url}/", "-o", "out.jsonl", "--json", *options, cwd=tmp_path))
    assert code == 0, err
    rows = [json.loads(line)["url"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(rows) == [f"{site.url}/", *(f"{site.url}/{n}" for n in range(1, 7))]
    assert sorted(site.asked) == sorted(set(site.asked))
    assert "/secret/7" not in site.asked
    assert summary["dead"] == 0


def test_a_sitemap_is_collected_as_seeds(site: Site, settings: Settings) -> None:
    """Redirects and indexes followed, the newest first, other domains left out and told."""
    told: list[str] = []
    with collect(settings, f"{site.url}/old.xml", told.append) as spool:
        seeds = [json.loads(line) for line in spool]
    assert [seed["url"].removeprefix(site.url) for seed in seeds] == ["/5", "/4", "/3", "/2", "/1", "/6", "/secret/7"]
    assert told == ["left out, as they are not of 127.0.0.1: 1"]
    assert site.asked.count("/index.xml") == 2  # by its old name and by its own


@pytest.mark.parametrize(("coding", "count"), [("gzip", 40_000), ("br", 0)])
def test_a_coded_sitemap_may_unpack_to_more_than_a_page_may_have(settings: Settings, coding: str, count: int) -> None:
    """In the coding that is asked for; another one is told."""
    body = b"<url><loc>/%b</loc></url>" * 40_000 % tuple(b"%d" % number for number in range(40_000))
    packed = gzip.compress(body) if coding == "gzip" else brotli.compress(body, quality=1)
    settings = settings.model_copy(update={"fetch": settings.fetch.model_copy(update={"max_body_bytes": 1 << 20})})
    assert len(packed) < settings.fetch.max_body_bytes < len(body)
    site = Threaded(lambda _: (200, "application/xml", packed), coding=lambda _: coding)
    try:
        if count:
            with collect(settings, f"{site.origin}/s.xml", lambda _: None) as spool:
                assert sum(1 for _ in spool) == count
        else:
            with pytest.raises(Misconfigured, match="too_large"):
                collect(settings, f"{site.origin}/s.xml", lambda _: None)
    finally:
        site.close()
    assert [headers["Accept-Encoding"] for _, headers in site.heard] == ["gzip"]


async def test_a_login_given_for_a_sitemap_is_its_origins_and_one_in_it_nobodys(settings: Settings) -> None:
    """What the user gives is sent to that origin, and told to nobody; what the sitemap names is asked as it was."""
    own, other = Server(), Server(body=b"<urlset><url><loc>/x</loc></url></urlset>")
    async with sites(own, other):
        loc = f"<sitemap><loc>{other.origin.replace('//', '//eve:bad@')}/b.xml</loc></sitemap>"
        body = f"<sitemapindex>{loc}</sitemapindex>".encode()
        own.answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        told: list[str] = []
        url = f"{own.origin.replace('//', '//ann:hush@')}/a.xml"
        with await asyncio.to_thread(collect, settings, url, told.append) as spool:
            seeds = [json.loads(line)["url"] for line in spool]
    assert own.got("Authorization") == [basic("ann", "hush")]
    assert other.got("Authorization") == []
    assert seeds == [f"{other.origin}/x"]
    assert "hush" not in str((seeds, told))


@pytest.mark.parametrize(
    ("path", "says"), [("/gone.xml", "HTTP 404"), ("/", "lists no URL of 127.0.0.1"), ("/1", "lists no URL")]
)
def test_a_sitemap_without_urls_is_told(site: Site, settings: Settings, path: str, says: str) -> None:
    """With why."""
    with pytest.raises(Misconfigured, match=says):
        collect(settings, site.url + path, lambda _: None)


def test_the_guard_holds_for_sitemaps(site: Site, settings: Settings) -> None:
    """A private address is refused unless the user says so; nothing is sent."""
    guarded = settings.model_copy(update={"network": settings.network.model_copy(update={"allow_private": False})})
    with pytest.raises(Misconfigured, match="private_address"):
        collect(guarded, f"{site.url}/index.xml", lambda _: None)
    with pytest.raises(Misconfigured, match="write it as sitemap:https"):
        collect(guarded, "a.example", lambda _: None)
    assert site.asked == []


def test_seeds_are_taken_from_sitemaps_and_gzipped_files(tmp_path: Path) -> None:
    """Read twice, as all seeds are."""
    packed = tmp_path / "seeds.gz"
    packed.write_bytes(gzip.compress(b"http://a.example/\n"))
    with Source(
        [str(packed), "-", "sitemap:x"], io.BytesIO(gzip.compress(b"b\n")), lambda url: io.BytesIO(url.encode())
    ) as source:
        for _ in range(2):
            assert [list(lines) for _, lines in source.parts()] == [[b"http://a.example/\n"], [b"b\n"], [b"x"]]
    packed.write_bytes(packed.read_bytes()[:-9])
    with Source([str(packed)]) as source, pytest.raises(Misconfigured, match=r"is damaged: .*; nothing was sent"):
        [list(lines) for _, lines in source.parts()]


@pytest.mark.parametrize(
    ("meta", "body", "pages", "sitemaps"),
    [
        ({"kind": "robots"}, b"/a.xml\nhttp://u:p@b.example/b.xml\nftp://c",
         [], ["http://a.example/a.xml", "http://b.example/b.xml"]),
        ({"kind": "sitemap"},
         b"<url><loc>/1?gclid=1</loc><priority>.9</priority></url><url><loc>//u:p@a.example./2</loc><lastmod>2024</lastmod>",
         [("http://a.example/2", 0), ("http://a.example/1", 8)], []),
        ({"kind": "sitemap", "http": 404}, b"<url><loc>/1</loc></url>", [], []),
        ({"kind": "sitemap", "http": 302, "location": "/x"}, b"<url><loc>/1</loc></url>", [], []),
        ({"kind": "robots"}, b"www.b.example/s.xml\n/t.xml", [], ["http://www.b.example/s.xml", "http://a.example/t.xml"]),
    ],
)  # fmt: skip
def test_a_listing_gives_links_and_no_rows(
    meta: dict[str, Any], body: bytes, pages: list[tuple[str, int]], sitemaps: list[str]
) -> None:
    """By the job's canonical rules; only what was answered with 2xx lists anything."""
    links = Links(Canonicaliser(CanonicalRules()), Places(1))
    found = parse_listing(PageMeta("http://a.example/s.xml", "j", **{"http": 200, **meta}), body, links, JobSpec())
    assert [(link.url, found.priorities.get(link.url, 0)) for link in found.outlinks] == pages
    assert [link.url for link in found.sitemaps] == sitemaps
    assert found.items == []


LISTED = b"""\xef\xbb\xbf
<?xml version="1.0"?><urlset><url><loc>http://a.example/1</loc></url>
<url><loc>http://b.example/2</loc><priority>1.0</priority></url></urlset>"""


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_a_file_may_be_a_sitemap(packed: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """By its first character, also on standard input: each URL that it lists is a seed, of any domain."""
    file = tmp_path / "saved"
    file.write_bytes(packed(LISTED))
    with Source([str(file), "-"], io.BytesIO(packed(LISTED))) as source:
        for _ in range(2):
            parts = {name: [json.loads(line) for line in lines] for name, lines in source.parts()}
            wanted = [{"url": "http://a.example/1", "priority": 0}, {"url": "http://b.example/2", "priority": 10}]
            assert parts == {str(file): wanted, "standard input": wanted}
        assert source.first() == "http://a.example/1"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<sitemapindex><sitemap><loc>http://a.example/s.xml</loc></sitemap>", "an index of sitemaps: .*sitemap:URL"),
        (b"<urlset><url><loc>/1</loc></url>", "URLs without a host: .*sitemap:URL"),
        (b"<html><p>hello", "begins like a sitemap, and lists no URL"),
        (b"<urlset>" + b"<url><loc>http://a.example/%d</loc></url>" * 50_001 % (*range(50_001),), "to its end"),
    ],
)
def test_a_sitemap_in_a_file_that_is_not_whole_is_an_error(content: bytes, says: str) -> None:
    """Nothing of it is a seed, and the message names the way out."""
    with Source(["-"], io.BytesIO(content)) as source, pytest.raises(Misconfigured, match=f"standard input .*{says}"):
        [list(lines) for _, lines in source.parts()]


def test_a_run_takes_the_urls_of_a_sitemap_and_has_the_name_of_what_was_typed(site: Site, settings: Settings) -> None:
    """So the same command goes on, also when the site has a page more."""
    sitemap, told = f"sitemap:{site.url}/index.xml", list[str]()
    settings, request, parts = requested(settings, [sitemap, "http://b.example/"])
    with ExitStack() as opened:
        wanted = wanted_of(settings, request, parts, told.append, opened)
        assert wanted.source is not None
        urls = [found_on(line.strip(), str).url for _, part in wanted.source.parts() for line in part]
    assert urls[0] == "http://b.example/"
    assert sorted(urls[1:7]) == [f"{site.url}/{n}" for n in range(1, 7)]
    assert wanted.name == job_name(["http://b.example/", sitemap])
