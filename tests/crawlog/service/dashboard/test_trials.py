"""Trials that the page Try keeps."""

import time

from crawlog.schemas.pages import PageMeta
from crawlog.service.api_try import TriedPage
from crawlog.service.dashboard.try_page import MOST, MOST_BYTES, KeptTrial, Trials
from crawlog.streams.spiders import StoredPage


def test_trials_are_bounded_in_number_and_bytes() -> None:
    """The oldest ones go; the newest stays, however large it is."""

    def trial(size: int) -> KeptTrial:
        meta = PageMeta("http://a.test/", "trying")
        result = TriedPage("http://a.test/", 200, "", "", size, [], [], [], [], [], "", "", "1")
        return KeptTrial("ann", time.time(), {}, StoredPage(meta, bytes(size)), result)

    trials = Trials()
    names = [trials.keep(trial(1)) for _ in range(MOST + 5)]
    assert list(trials.kept) == names[5:]
    large = trials.keep(trial(MOST_BYTES + 1))
    assert list(trials.kept) == [large]
