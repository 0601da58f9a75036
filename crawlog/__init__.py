"""The front door: the names that users import, and the command line."""

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .streams.response import Request as Request
    from .streams.response import Response as Response
    from .streams.spider import Spider as Spider

__all__ = ["Request", "Response", "Spider", "__version__"]

__version__ = version("crawlog")


def __getattr__(name: str) -> object:
    """The spider's names, once they are asked for: they bring a parser, which `crawlog --help` does not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from .streams import response, spider

    return getattr(spider if name == "Spider" else response, name)
