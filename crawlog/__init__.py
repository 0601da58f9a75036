"""The front door: the names that users import, and the command line."""

from importlib.metadata import version

__version__ = version("crawlog")
