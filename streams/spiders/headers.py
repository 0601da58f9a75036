"""Headers of requests and responses: names in any case, several values a name."""

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping

HeaderValues = str | bytes | int | Iterable[str | bytes]
GivenHeaders = Mapping[str, HeaderValues | None] | Iterable[tuple[str, HeaderValues | None]]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 5.6.2: a token


class Headers(MutableMapping[str, str]):
    """Headers by name, in the order they were given; a name is found in upper or lower case.

    `headers["link"]` is one text: the values of a name, joined with a comma. `getlist` gives them apart.
    """

    def __init__(self, given: GivenHeaders = ()) -> None:
        self._values: dict[str, tuple[str, list[str]]] = {}
        pairs: Iterable[tuple[str, HeaderValues | None]]
        pairs = given.items() if isinstance(given, Mapping) else given
        pairs = given.pairs() if isinstance(given, Headers) else pairs
        for name, value in pairs:
            texts = _texts(name, value) if value is not None else []
            if texts:
                self._values.setdefault(name.lower(), (name, []))[1].extend(texts)

    def __getitem__(self, name: str) -> str:
        return ", ".join(self._values[name.lower()][1])

    def __setitem__(self, name: str, value: HeaderValues) -> None:
        self._values[name.lower()] = (name, _texts(name, value))

    def __delitem__(self, name: str) -> None:
        del self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __repr__(self) -> str:
        return f"Headers({dict(self)!r})"

    def getlist(self, name: str) -> list[str]:
        """All values of a name, in order; empty if there is none."""
        return list(self._values.get(name.lower(), ("", []))[1])

    def pairs(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, value) for name, values in self._values.values() for value in values)


def _texts(name: str, value: HeaderValues) -> list[str]:
    if isinstance(value, str | bytes | int):
        return [_text(name, value)]
    return [_text(name, one) for one in value]


def _text(name: str, value: str | bytes | int) -> str:
    """One value. Raises: ValueError: it would break the request's head."""
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    if not _NAME.fullmatch(name) or any(char in "\r\n\0" for char in text):
        raise ValueError(
            f"the header {name!r:.80} or its value {text!r:.80} cannot be sent: a name is letters, digits"
            " and -, a value is one line"
        )
    return text.strip(" \t")
