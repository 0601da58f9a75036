"""The counts of jobs in reports."""

from pathlib import Path

import pytest

from crawlog.schemas import urls as u
from tests.support.fetching import URLS, running


async def test_counts_name_the_epoch_that_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else readers take those of before a `--fresh`, or of a deleted job of the name, for the new job's."""
    async with running(tmp_path, monkeypatch) as world:
        world.find("http://a.com/")
        await world.all_done("http://a.com/")
        before = world.stage.reports()[0].jobs["j"]
        again = u.UrlsRecord("j", 1, rewind=u.Rewind()), u.UrlsRecord("j", 1, spec=u.JobSpec(rev=2))
        for record in again:
            world.log.send(URLS, u.encode(record))
        await world.until(lambda: world.log.ends[URLS] == 5 and world.is_folded)
        after = world.stage.reports()[0].jobs["j"]
        assert [(one.epoch, one.fetched) for one in (before, after)] == [(0, 1), (1, 0)]
