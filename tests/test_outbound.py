"""What a request carries and by which way it leaves: a secret reaches the one place it was given for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sites import Site, sites

from crawlog.streams.outbound import (
    FAILURES,
    REST_S,
    Bandwidth,
    Proxies,
    Proxy,
    basic,
    origin_of,
    read_header,
    read_login,
)
from crawlog.streams.sections import Fetch
from crawlog.streams.settings import Sources, origins, resolve


async def test_a_login_is_sent_to_its_origin_and_to_no_other_port_or_robots_txt_elsewhere() -> None:
    """GHSA-jwqp-28gf-p498, GHSA-cw9j-q3vf-hrrv, GHSA-4qqq-9vqf-3h3f."""
    mine, other = Site(), Site()
    async with sites(mine, other, logins=lambda each: (each[0].origin.replace("//", "//ann:p%40ss@"),)) as client:
        for site in (mine, other):
            await client.get(site.origin + "/robots.txt", any_type=True)
            await client.get(site.origin + "/")
    assert mine.got("Authorization") == [basic("ann", "p@ss")] * 2
    assert other.got("Authorization") == []


async def test_a_cookie_goes_back_to_its_domain_within_its_job_only() -> None:
    """GHSA-cjvr-mfj7-j4j8: another host sees none; robots.txt, which is no job's, goes without."""
    site, other = Site("Set-Cookie: id=7; Path=/\r\n"), Site(address="127.0.0.2")
    async with sites(site, other, cookies=True) as client:
        for job in ("a", "a", "b", ""):
            await client.get(site.origin + "/", job=job)
        await client.get(other.origin + "/", job="a")
    assert site.got("Cookie") == ["id=7"]
    assert (len(other.requests), other.got("Cookie")) == (1, [])


async def test_without_the_setting_no_cookie_is_kept() -> None:
    """A crawl has no memory of a host but its state."""
    site = Site("Set-Cookie: id=7; Path=/\r\n")
    async with sites(site) as client:
        for _ in range(2):
            await client.get(site.origin + "/", job="a")
    assert site.got("Cookie") == []


@pytest.mark.parametrize(
    ("domain", "is_kept"), [("co.uk", False), ("other.co.uk", False), ("shop.co.uk", True), ("", True)]
)
async def test_a_cookie_for_a_public_suffix_or_another_domain_is_dropped(domain: str, is_kept: bool) -> None:
    """GHSA-mfjm-vh54-3f96. The site's name is resolved by the proxy, which is the server here."""
    server = Site(f"Set-Cookie: id=7; Path=/{'; Domain=' + domain if domain else ''}\r\n")
    async with sites(server, cookies=True, proxies=lambda each: (each[0].origin,)) as client:
        for _ in range(2):
            answer = await client.get("http://www.shop.co.uk/", job="a")
            assert answer.http == 200
    assert server.got("Cookie") == (["id=7"] if is_kept else [])


async def test_a_proxy_gets_the_whole_url_and_its_own_password_only() -> None:
    """GHSA-9x8m-2xpf-crp3: the second proxy never sees the first one's."""
    one, two = Site(), Site()

    def pool(each: tuple[Site, ...]) -> tuple[str, ...]:
        return each[0].origin.replace("//", "//ann:one@"), each[1].origin.replace("//", "//bob:two@")

    async with sites(one, two, proxies=pool) as client:
        answers = [await client.get(f"http://host-{number}.test/page") for number in range(20)]
    assert {answer.http for answer in answers} == {200}
    assert len(one.requests) + len(two.requests) == 20
    assert set(one.got("Proxy-Authorization")) == {basic("ann", "one")}
    assert set(two.got("Proxy-Authorization")) == {basic("bob", "two")}
    assert all(request.startswith("GET http://host-") for request in one.requests + two.requests)


async def test_a_dead_proxy_is_named_and_its_hosts_go_by_the_others() -> None:
    """No request leaves without a proxy."""
    alive = Site()

    def pool(each: tuple[Site, ...]) -> tuple[str, ...]:
        return each[0].origin, "http://127.0.0.1:1"

    async with sites(alive, proxies=pool) as client:
        errors = [(await client.get(f"http://host-{number}.test/")).error for number in range(40)]
    assert set(errors) == {"", "proxy"}
    assert errors.count("proxy") == FAILURES


async def test_a_proxy_that_wants_a_login_is_no_answer_of_the_site() -> None:
    """407 is the proxy's, so it is no result with that status."""
    proxy = Site(status="407 Proxy Authentication Required")
    async with sites(proxy, proxies=lambda each: (each[0].origin,)) as client:
        answer = await client.get("http://host.test/")
    assert (answer.http, answer.error) == (None, "proxy_login")


async def test_headers_are_sent_to_every_host() -> None:
    """A contact, for those who read their logs."""
    site = Site()
    async with sites(site, headers=("From: me@example.org",)) as client:
        await client.get(site.origin + "/")
    assert site.got("From") == ["me@example.org"]


async def test_a_body_comes_no_faster_than_the_bandwidth() -> None:
    """A bucket of one second is free; the rest waits."""
    site = Site(body=b"x" * 150_000)
    async with sites(site, max_host_bytes_per_s=100_000) as client:
        answer = await client.get(site.origin + "/")
    assert (answer.kept, len(answer.body)) == (True, 150_000)
    assert answer.took_s > 0.4


@given(st.lists(st.tuples(st.integers(1, 100_000), st.floats(0, 3)), min_size=1, max_size=50))
def test_who_waits_as_told_reads_no_more_than_the_pace_and_one_second(reads: list[tuple[int, float]]) -> None:
    """Whatever the pauses between the chunks."""
    bucket, now, total = Bandwidth(10_000), 100.0, 0
    for size, pause in reads:
        now += pause
        now += bucket.wait_s(size, now)
        total += size
        assert total <= 10_000 * (now - 100.0 + 1.0) + 1e-6 * total + 1


def test_a_host_keeps_its_proxy_and_comes_back_to_it() -> None:
    """Rendezvous hashing: only the hosts of the one that failed move, and only while it rests."""
    pool = [Proxy(f"http://proxy-{number}:80") for number in range(5)]
    proxies = Proxies(pool)
    hosts = [f"http://host-{number}:80" for number in range(200)]
    before = {host: proxies.pick(host, 0.0) for host in hosts}
    for _ in range(FAILURES):
        proxies.failed(pool[0], 0.0)
    during = {host: proxies.pick(host, 1.0) for host in hosts}
    assert {host for host in hosts if before[host] != during[host]} == {
        host for host in hosts if before[host] == pool[0]
    }
    assert pool[0] not in during.values()
    assert {host: proxies.pick(host, REST_S + 1.0) for host in hosts} == before


def test_where_all_rest_the_one_that_wakes_first_is_used() -> None:
    """Never none."""
    pool = [Proxy("http://a:80"), Proxy("http://b:80")]
    proxies = Proxies(pool)
    for at, proxy in enumerate(pool):
        for _ in range(FAILURES):
            proxies.failed(proxy, float(at))
    assert proxies.pick("http://host:80", 2.0) == pool[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("From: a@b", ("From", "a@b")),
        ("  X-A:b ", ("X-A", "b")),
        ("X-Empty:", ("X-Empty", "")),
        ("no colon", None),
        ("X-A: b\r\nEvil: 1", None),
        ("Authorization: Basic x", None),
        ("cookie: a=b", None),
        ("Host: other", None),
    ],
)
def test_a_header_is_one_line_and_none_that_has_a_setting(text: str, expected: tuple[str, str] | None) -> None:
    """A header that could end another one's host or login is refused.

    CVE-2026-47265, GHSA-hg6j-4rv6-33pg: no header set here can be a cookie or a login that would outlive a redirect.
    """
    if expected is None:
        with pytest.raises(ValueError, match=r"header|cannot be set here"):
            read_header(text)
    else:
        assert read_header(text) == expected


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Example.COM", "https://example.com:443"),
        ("http://a.test/path", "http://a.test:80"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    """RFC 6454."""
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "wrong", ["https://host.test", "ftp://a:hush@h", "https://a:hush@h/path", "http://a:hush@h:99999"]
)
def test_a_wrong_login_or_proxy_is_refused_without_repeating_it(wrong: str) -> None:
    """A password has no place in an error."""
    with pytest.raises(ValueError, match="https://USER:PASSWORD@HOST") as refused:
        read_login(wrong)
    assert "hush" not in str(refused.value)
    for key in ("logins", "proxies"):
        if key == "logins" or "ftp" in wrong or "path" in wrong or "99999" in wrong:
            with pytest.raises(ValidationError):
                Fetch.model_validate({key: (wrong,)})


def test_secrets_are_not_shown_among_the_settings() -> None:
    """Neither by `crawlog settings` nor in an error about them."""
    pairs = ["fetch.logins=https://ann:hush@h.test", "fetch.proxies=http://ann:hush@p.test"]
    shown = [
        one.value for one in origins(Sources(pairs=pairs, environ={})) if one.key in ("fetch.logins", "fetch.proxies")
    ]
    assert len(shown) == 2
    assert "hush" not in str(shown)
    with pytest.raises(Exception, match=r"fetch\.logins") as refused:
        resolve(Sources(pairs=["fetch.logins=ann:hush@h.test"], environ={}))
    assert "hush" not in str(refused.value)
