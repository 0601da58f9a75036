"""The classes that may travel by name: those at the top of the project's modules, and Scrapy's own requests.

No other is resolved, and nothing is imported by name.

modules of the project, and what they import ─► items, enums, requests ─► names in the log, `MODULE:Class`
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from scrapy import http
from scrapy.http import Request
from scrapy.item import Item

from ..item_classes import classes_of, named_classes
from ..values import Carrier, Values

OF_SCRAPY: tuple[type[Request], ...] = (http.FormRequest, http.JsonRequest, http.XmlRpcRequest)


class Kinds:
    """The classes of one project.

    Args:
        modules: Of the project, each with its name in the log.

    Attributes:
        values: Packs what travels: `meta`, `cb_kwargs` and items.
    """

    def __init__(self, modules: Iterable[tuple[str, ModuleType]]) -> None:
        modules = tuple(modules)
        self._modules = {"scrapy.spidermiddlewares.referer", *(name for name, _ in modules)}
        named = named_classes(modules)
        scrapys = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in OF_SCRAPY}
        self._requests = {name: kind for name, kind in named.items() if issubclass(kind, Request)} | scrapys
        self._items = {name: kind for name, kind in named.items() if issubclass(kind, Item)} | {_name(Item): Item}
        self._names = {kind: name for name, kind in (self._requests | self._items).items()}  # Scrapy's own names last
        self.values = Values(
            classes_of(modules), (Carrier("item", lambda kind: issubclass(kind, Item), self._fields, self._item),)
        )

    def of_request(self, request: Request) -> str:
        """The name of a request's class; empty for the plain one. Raises: TypeError: it is not the project's."""
        kind = type(request)
        return "" if kind is Request else self._name(kind)

    def request(self, name: str) -> type[Request]:
        """The class of a request. Raises: ValueError: it is not Scrapy's or the project's."""
        if not name:
            return Request
        if name not in self._requests:
            raise ValueError(f"{name!r:.200} is no class of requests of Scrapy or of this project; it is not loaded")
        return self._requests[name]

    def has(self, path: str) -> bool:
        """Whether an import path leads into the project, or to one of Scrapy's policies of referers."""
        return path.rpartition(".")[0] in self._modules

    def _name(self, kind: type) -> str:
        if kind not in self._names:
            raise TypeError(
                f"its class {kind.__module__}.{kind.__qualname__} is not at the top of a module of the project, where "
                "alone classes are looked up by name: define or import it there"
            )
        return self._names[kind]

    def _fields(self, item: Item) -> list[Any]:
        return [self._name(type(item)), dict(item)]

    def _item(self, content: list[Any]) -> Item:
        name, fields = content
        if name not in self._items:
            raise ValueError(f"the project has no item class {name!r:.200}: it was written by another version")
        kind = self._items[name]
        return kind({key: value for key, value in fields.items() if key in kind.fields})


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
