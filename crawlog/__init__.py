"""The front door: the names that users import, and the command line."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("crawlog")
