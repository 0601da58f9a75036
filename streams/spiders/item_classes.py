"""Classes with fields, whose objects are items or parts of values: dataclasses, attrs, msgspec, pydantic, named tuples.

None of these packages is imported: a class is known by what its package puts into it. An object is made anew by its
fields, without its `__init__` where that is possible, so that it is what it was.
"""

from collections.abc import Callable, Iterable
from dataclasses import MISSING
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple

import msgspec


class Shape(NamedTuple):
    """How objects of a kind of classes are taken apart and made anew.

    Attributes:
        fields: The fields of an object of the class, by name.
        make: An object of the class with these fields: unknown ones are left out, missing ones have their default.
    """

    fields: Callable[[type, Any], dict[str, Any]]
    make: Callable[[type, dict[str, Any]], Any]


def shape_of(kind: type) -> Shape | None:
    """How objects of this class are taken apart; None for a class without fields."""
    return next((shape for mark, shape in _SHAPES if mark in kind.__dict__ or hasattr(kind, mark)), None)


def classes_of(modules: Iterable[tuple[str, ModuleType]]) -> dict[str, type]:
    """The classes of some modules that have fields, and their enums, by `MODULE:Class`.

    Args:
        modules: Names, as they shall stand in the log, and modules.
    """
    return {name: kind for name, kind in named_classes(modules).items() if _travels(kind)}


def named_classes(modules: Iterable[tuple[str, ModuleType]]) -> dict[str, type]:
    """All classes at the top of some modules, by `MODULE:Class`: their own, and those of libraries that they import.

    One of a library has the name that it has in the module; crawlog's own are left out.
    """
    modules = tuple(modules)
    homes = {module.__name__ for _, module in modules}
    own, imported = {}, {}
    for name, module in modules:
        for word, kind in list(vars(module).items()):
            if not isinstance(kind, type):
                continue
            if kind.__module__ == module.__name__:
                own[f"{name}:{kind.__qualname__}"] = kind
            elif not str(kind.__module__).startswith("crawlog.") and kind.__module__ not in homes:
                imported[f"{name}:{word}"] = kind
    return imported | own


def _travels(kind: type) -> bool:
    return issubclass(kind, Enum) or shape_of(kind) is not None


def _attributes(names: Callable[[type], Iterable[str]]) -> Callable[[type, Any], dict[str, Any]]:
    def fields(kind: type, value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names(kind) if hasattr(value, name)}

    return fields


def _bare(kind: type, fields: dict[str, Any], defaults: dict[str, Callable[[], Any]]) -> Any:
    """An object without its `__init__`: converters, validators and `__post_init__` have run when it was made."""
    made: Any = object.__new__(kind)
    for name, default in defaults.items():
        object.__setattr__(made, name, fields[name] if name in fields else default())
    return made


def _missing(kind: type, name: str) -> Callable[[], Any]:
    def default() -> Any:
        raise ValueError(f"{kind.__qualname__} has no value for its field {name!r}")

    return default


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _make_dataclass(kind: Any, fields: dict[str, Any]) -> Any:
    defaults: dict[str, Callable[[], Any]] = {}
    for field in kind.__dataclass_fields__.values():
        if not _is_field(field):
            continue
        if field.default is not MISSING:
            defaults[field.name] = _constant(field.default)
        else:
            has_factory = field.default_factory is not MISSING
            defaults[field.name] = field.default_factory if has_factory else _missing(kind, field.name)
    return _bare(kind, fields, defaults)


def _make_attrs(kind: Any, fields: dict[str, Any]) -> Any:
    return _bare(kind, fields, {field.name: _attrs_default(kind, field) for field in kind.__attrs_attrs__})


def _attrs_default(kind: type, field: Any) -> Callable[[], Any]:
    factory = getattr(field.default, "factory", None)
    if callable(factory) and not getattr(field.default, "takes_self", False):
        return _called(factory)
    if factory is not None or type(field.default).__name__ == "_Nothing":
        return _missing(kind, field.name)
    return _constant(field.default)


def _called(factory: Callable[[], Any]) -> Callable[[], Any]:
    return factory


def _make_struct(kind: type, fields: dict[str, Any]) -> Any:
    names = {field.name for field in msgspec.structs.fields(kind)}
    return kind(**{name: value for name, value in fields.items() if name in names})


def _make_pydantic(kind: Any, fields: dict[str, Any]) -> Any:
    return kind.model_construct(**fields)


def _make_named_tuple(kind: Any, fields: dict[str, Any]) -> Any:
    return kind(**{name: value for name, value in fields.items() if name in kind._fields})


def _dataclass_names(kind: Any) -> list[str]:
    return [name for name, one in kind.__dataclass_fields__.items() if _is_field(one)]


def _is_field(field: Any) -> bool:
    return bool(field._field_type.name == "_FIELD")  # noqa: SLF001  # else a ClassVar or an InitVar


def _attrs_names(kind: Any) -> list[str]:
    return [one.name for one in kind.__attrs_attrs__]


def _struct_names(kind: Any) -> Iterable[str]:
    names: tuple[str, ...] = kind.__struct_fields__
    return names


def _pydantic_names(kind: Any) -> list[str]:
    return list(kind.__pydantic_fields__)


def _tuple_names(kind: Any) -> Iterable[str]:
    names: tuple[str, ...] = kind._fields
    return names


# By the attribute that marks a class, in the order in which they are looked for.
_SHAPES = (
    ("__dataclass_fields__", Shape(_attributes(_dataclass_names), _make_dataclass)),
    ("__attrs_attrs__", Shape(_attributes(_attrs_names), _make_attrs)),
    ("__struct_fields__", Shape(_attributes(_struct_names), _make_struct)),
    ("__pydantic_fields__", Shape(_attributes(_pydantic_names), _make_pydantic)),
    ("_field_defaults", Shape(_attributes(_tuple_names), _make_named_tuple)),
)
