"""Code that runs a crawl of Scrapy's, or `crawlog.crawl`, by itself when it is loaded, as scripts do: it is refused.

Each process that loads it would crawl the site, beside the log and without its rules.
"""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final, NoReturn

from crawlog.streams.errors import Misconfigured

CRAWLER: Final = "scrapy.crawler"
"""The module whose `Crawler` begins each crawl of Scrapy's."""

HARM: Final = (
    'would crawl by Scrapy in each process that loads it: write it below `if __name__ == "__main__":`, and give '
    "settings of the process as custom_settings of the spider"
)

_refused: list[str] = []
"""Names of the spiders whose crawls were refused since the last look."""


def check(path: object, source: bytes) -> None:
    """Name the line that starts a crawl, where the text shows one; `no_crawls` refuses all others.

    Raises: Misconfigured: the file starts a crawl outside of `if __name__ == "__main__":`.
    """
    if b"scrapy.crawler" not in source:
        return
    try:
        nodes = list(_run_at_once(ast.parse(source)))
    except (SyntaxError, ValueError):
        return  # told of when it is run
    made = {target.id for node in nodes if isinstance(node, ast.Assign) for target in _names(node)}
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=("start" | "run") as verb)) if (
                name in made | {"reactor"}
            ):
                raise Misconfigured(f"--spider {path} cannot be loaded: line {node.lineno}: {name}.{verb}() {HARM}")


def _run_at_once(module: ast.Module) -> Iterator[ast.AST]:
    """All parts of a file but functions, classes, and what stands below a look at `__name__`."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        is_guarded = isinstance(node, ast.If) and "__name__" in ast.dump(node.test)
        if not is_guarded and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            waiting += ast.iter_child_nodes(node)


def _names(node: ast.Assign) -> Iterator[ast.Name]:
    """The names that a process of Scrapy's is given."""
    match node.value:
        case ast.Call(func=ast.Name(id=kind) | ast.Attribute(attr=kind)) if kind.endswith("CrawlerProcess"):
            yield from (target for target in node.targets if isinstance(target, ast.Name))


_loading: list[str] = []
"""The spider that is being loaded, or none."""


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
    _forbid()
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


def _forbid() -> None:
    module = sys.modules.get(CRAWLER)
    if module is not None:
        _refuse_crawls_of(module)
    elif not any(isinstance(one, CrawlerModule) for one in sys.meta_path):
        sys.meta_path.insert(0, CrawlerModule())


class CrawlerModule(Loader):
    """Loads Scrapy's module of crawlers, if somebody imports it, so that none of them crawls."""

    def find_spec(self, name: str, path: Any = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  # Python's own signature
        """The module's spec; None leaves other modules to the next finders."""
        spec = PathFinder.find_spec(name, path) if name == CRAWLER else None
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As its own loader does; then no crawl begins any more."""
        self._loader.exec_module(module)
        _refuse_crawls_of(module)


def _refuse_crawls_of(module: Any) -> None:
    module.Crawler.crawl = module.Crawler.crawl_async = _refuse


def _refuse(crawler: Any, *_: object, **__: object) -> NoReturn:
    kind = crawler.spidercls.__name__
    _refused.append(kind)
    raise Misconfigured(f"a crawl of {kind} {HARM}")
