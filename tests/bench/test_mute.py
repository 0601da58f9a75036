"""A whole crawl of good hosts beside such as never answer."""

from pathlib import Path

import pytest

from bench import mute
from tests.support.cluster import needs_site


@pytest.mark.broker
@pytest.mark.slow
@needs_site
@pytest.mark.long
def test_good_hosts_go_on_beside_mute_ones_mute_names_and_slow_ones(tmp_path: Path) -> None:
    """All of their pages come while four places would be held for a quarter of an hour by those before them."""
    with (
        mute.never_answering() as port,
        mute.never_accepting() as closed,
        mute.mute_dns() as dns,
        mute.dripping() as slow,
    ):
        others = [
            *mute.addresses(40, port, 30),
            *mute.addresses(20, closed, 40),
            *mute.addresses(20, slow, 50),
            *(f"http://n{n}.mute{n}.example/" for n in range(40)),
        ]
        settings = (f"network.dns_servers=127.0.0.1:{dns}", "fetch.concurrency=4")
        crawled = mute.crawl(tmp_path / "mute", 2, 10, others, settings)
    assert crawled.pages == 20


@pytest.mark.broker
@pytest.mark.slow
@needs_site
@pytest.mark.long
def test_hosts_whose_first_answer_takes_12_s_are_not_lost_beside_mute_ones(tmp_path: Path) -> None:
    """They have 3 s at first, then 12, for mute ones hold all that strangers may; their last attempt is enough."""
    with mute.never_answering() as port, mute.waking(12.1) as (slow, sent):
        waking = mute.addresses(3, slow, 50)
        others = [*mute.addresses(40, port, 30), *waking]
        mute.crawl(tmp_path / "slow", 1, 2, others, ("fetch.concurrency=4",), lambda: len(sent) == len(waking))
        assert len(sent) == len(waking)
