"""What a tried spider may do."""

import pytest

from crawlog.service.api_try import _within
from crawlog.streams.settings import load


@pytest.mark.parametrize(
    ("key", "service", "own", "tried"),
    [
        ("allow_private", False, True, False),
        ("allow_private", True, False, False),
        ("allow_private", True, True, True),
        ("verify_tls", True, False, True),
        ("verify_tls", False, True, True),
        ("verify_tls", False, False, False),
    ],
)
def test_a_tried_spider_reaches_no_more_than_the_service(key: str, service: bool, own: bool, tried: bool) -> None:
    settings = _within(
        load({f"network.{key}": own, "fetch.timeout_s": 3.0}, environ={}),
        load({f"network.{key}": service}, environ={}),
    )
    assert getattr(settings.network, key) is tried
    assert settings.fetch.timeout_s == 3.0
