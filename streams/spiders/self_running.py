"""Code that runs a crawl of Scrapy's, or `crawlog.crawl`, by itself when it is loaded, as scripts do: it is refused.

Each process that loads it would crawl the site, beside the log and without its rules.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final, NoReturn

from crawlog.streams.errors import Misconfigured

CRAWLER: Final = "scrapy.crawler"  # The module whose `Crawler` begins each crawl of Scrapy's

HARM: Final = (
    'would crawl by Scrapy in each process that loads it: write it below `if __name__ == "__main__":`, and give '
    "settings of the process as custom_settings of the spider"
)

_loading: list[str] = []  # The spider that is being loaded, or none

_refused: list[str] = []  # Names of the spiders whose crawls were refused during this load


def check_crawl() -> None:
    """Called by `crawlog.crawl`. Raises: Misconfigured: this process is loading a spider's file."""
    if _loading:
        raise Misconfigured(
            "crawl() is called while the file is loaded, which each process of its crawl does: write the call below "
            '`if __name__ == "__main__":`'
        )


@contextmanager
def no_crawls(named: str) -> Iterator[None]:
    """Load code of a user. No crawl of Scrapy begins in this process from now on, none of crawlog during the load.

    Args:
        named: The spider, for the message.

    Raises: Misconfigured: the code tried to begin one, whatever it made of the refusal.
    """
    if CRAWLER in sys.modules:
        _refuse_crawls_of(sys.modules[CRAWLER])
    elif not any(isinstance(one, CrawlerFinder) for one in sys.meta_path):
        sys.meta_path.insert(0, CrawlerFinder())
    _refused.clear()
    _loading.append(named)
    cause: BaseException | None = None
    try:
        yield
    except BaseException as error:
        if not _refused:
            raise
        cause = error  # often another one: `react` and Scrapy's processes take errors as their own
    finally:
        _loading.clear()
    if _refused:
        raise Misconfigured(f"--spider {named} cannot be loaded: a crawl of {_refused[0]} {HARM}") from cause


class CrawlerFinder(MetaPathFinder):
    """Finds Scrapy's module of crawlers, if somebody imports it, and has its crawls refused once it has run."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's spec; None leaves other modules to the next finders."""
        spec = PathFinder.find_spec(name, path, target) if name == CRAWLER else None
        if spec is not None and spec.loader is not None:
            runs = spec.loader.exec_module

            def run(module: ModuleType) -> None:
                runs(module)
                _refuse_crawls_of(module)

            spec.loader.exec_module = run  # type: ignore[method-assign]  # of this one loader
        return spec


def _refuse_crawls_of(module: Any) -> None:
    module.Crawler.crawl = module.Crawler.crawl_async = _refuse


def _refuse(crawler: Any, *_: object, **__: object) -> NoReturn:
    kind = crawler.spidercls.__name__
    _refused.append(kind)
    raise Misconfigured(f"a crawl of {kind} {HARM}")
