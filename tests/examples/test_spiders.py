"""The example spiders give the rows that the demo site has."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.own_walks import walked

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def site() -> Iterator[Any]:
    """The demo site on its own port, or on a free one."""
    spec = importlib.util.spec_from_file_location("demo_site_of_spiders", EXAMPLES / "demo_site.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo_site_of_spiders"] = module
    spec.loader.exec_module(module)
    served = module.Site(0).start()
    served.module = module
    yield served
    served.stop()


def test_data_travels_from_a_list_to_its_pages(site: Any) -> None:
    """Every book once, with its genre; a genre that there is not is a row of the errback."""
    shop = site.origins[0]
    rows = walked(EXAMPLES / "spiders" / "genres.py", site=shop)
    assert sorted(row["title"] for row in rows) == sorted(site.module.TITLES)
    first = next(row for row in rows if row["url"] == f"{shop}/books/1")
    assert first == {
        "url": f"{shop}/books/1", "genre": "fiction", "place": 1, "title": "The Salt Road", "pages": "180",
    }  # fmt: skip
    assert len(walked(EXAMPLES / "spiders" / "genres.py", genre="travel", site=shop)) == 6
    wrong = walked(EXAMPLES / "spiders" / "genres.py", genre="maps", site=shop)
    assert wrong == [{"url": f"{shop}/genre/maps", "error": "status 404"}]


def test_rules_find_every_post(site: Any, tmp_path: Path) -> None:
    """Of the blog alone."""
    blog = site.origins[1]
    source = (EXAMPLES / "spiders" / "posts.py").read_text()
    path = tmp_path / "posts.py"
    path.write_text(source.replace("http://127.0.10.2:8800", blog))
    rows = [row for row in walked(path) if row["url"].startswith(blog)]
    assert sorted(row["title"] for row in rows) == sorted(site.module.POSTS)
    assert {row["tag"] for row in rows} == set(site.module.TAGS)
