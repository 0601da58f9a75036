"""The front door: the names that users import, and the command line. It imports nothing before it is asked to."""

TYPE_CHECKING = False  # type checkers take it for true; `typing` might be a file of the current folder: see __main__.py
if TYPE_CHECKING:
    from crawlog.streams.sink import Sink as Sink
    from crawlog.streams.spiders import Request as Request
    from crawlog.streams.spiders import Response as Response
    from crawlog.streams.spiders import Spider as Spider

    __version__: str

__all__ = ["Request", "Response", "Sink", "Spider", "__version__"]


def __getattr__(name: str) -> object:
    """The names, once asked for: a spider's bring a parser, and the front door takes signals before all else."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("crawlog")
    if name == "Sink":
        from crawlog.streams.sink import Sink

        return Sink
    from crawlog.streams.spiders import response, spider

    return getattr(spider if name == "Spider" else response, name)
