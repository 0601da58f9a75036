"""The words of a page's error as errbacks meet them, in spiders of both kinds."""

import pytest

from crawlog.streams.spiders.failure import ConnectionFailed, DnsFailed, FetchError, NotSent, TimedOut, failure_kind


@pytest.mark.parametrize(
    ("error", "kind", "scrapys"),
    [
        ("dns", DnsFailed, "CannotResolveHostError"),
        ("connection_refused", ConnectionFailed, "DownloadConnectionRefusedError"),
        ("robots_unreachable: dns", DnsFailed, "CannotResolveHostError"),
        ("robots_unreachable: connection_refused", ConnectionFailed, "DownloadConnectionRefusedError"),
        ("robots_unreachable: connect_timeout", TimedOut, "DownloadTimeoutError"),
        ("robots_unreachable: http_503", NotSent, "IgnoreRequest"),
        ("robots_unreachable: private_address: private address 10.0.0.1", NotSent, "IgnoreRequest"),
        ("robots", NotSent, "IgnoreRequest"),
        ("bad_proxy: metadata address 169.254.169.254", NotSent, "IgnoreRequest"),
        ("private_address: dns", NotSent, "IgnoreRequest"),
        ("UnicodeError", FetchError, "DownloadFailedError"),
    ],
)
def test_a_host_that_is_not_there_is_the_same_failure_for_a_page_and_its_robots_txt(
    error: str, kind: type[Exception], scrapys: str
) -> None:
    """Scrapy asks for the page whatever became of the robots.txt, and fails then."""
    failures = pytest.importorskip("crawlog.streams.spiders.scrapy.arrived")
    assert failure_kind(error) is kind
    assert type(failures.raised(error)).__name__ == scrapys
