"""A form of a page, filled in: what a browser would send when it is submitted (HTML 4.10.21.4)."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from parsel import Selector, SelectorList

FormData = Mapping[str, object]

_NOT_SENT = frozenset({"submit", "image", "reset", "button", "file"})
_FIELDS = "self::input or self::select or self::textarea or self::button"


class FilledForm(NamedTuple):
    """A form, ready to be sent.

    Attributes:
        action: As written; empty for the page's own URL.
        fields: Names and values, in the order of the page; the given ones that it lacks are behind them.
        accept_charset: As written.
    """

    action: str
    method: str
    fields: list[tuple[str, str]]
    accept_charset: str


def filled_form(page: Selector, form: str, data: FormData, click: str) -> FilledForm:
    """The form that a CSS selector finds, with its own values and the given ones.

    Args:
        data: Values by name; they replace those of the page; a list is several, None leaves the field out.
        click: CSS selector of the button that is clicked; by default the form's first one.

    Raises: ValueError: there is no such form, or no such button.
    """
    found = [one for one in page.css(form) if getattr(one.root, "tag", "") == "form"]
    if not found:
        raise ValueError(f"the page has no form {form!r}")
    node = found[0]
    inside = _fields_of(page, node)
    clicked = _clicked(page, inside, click)
    own = [pair for one in inside for pair in _sent(one, clicked) if pair[0] not in data]
    given = [(name, str(value)) for name, values in data.items() for value in _each(values)]
    attributes = node.attrib
    method = (attributes.get("method") or "get").strip().upper()
    action = (clicked.attrib.get("formaction") if clicked is not None else None) or attributes.get("action") or ""
    charsets = attributes.get("accept-charset") or ""
    return FilledForm(action.strip(), method if method in {"GET", "POST"} else "GET", own + given, charsets)


def _fields_of(page: Selector, form: Selector) -> SelectorList[Selector]:
    name = form.attrib.get("id")
    if not name:
        return form.xpath(f".//*[({_FIELDS}) and not(@form)]")
    condition = f"({_FIELDS}) and (@form=$name or (not(@form) and ancestor::form[@id=$name]))"
    return page.xpath(f"//*[{condition}]", name=name)


def _clicked(page: Selector, inside: SelectorList[Selector], click: str) -> Selector | None:
    buttons = [one for one in inside if _kind(one) in {"submit", "image"} and "disabled" not in one.attrib]
    if not click:
        return buttons[0] if buttons else None
    wanted = {one.root for one in page.css(click)}
    found = next((one for one in buttons if one.root in wanted), None)
    if found is None:
        raise ValueError(f"the form has no button {click!r}")
    return found


def _kind(field: Selector) -> str:
    tag = str(field.root.tag)
    if tag in {"select", "textarea"}:
        return tag
    return (field.attrib.get("type") or ("submit" if tag == "button" else "text")).strip().lower()


def _sent(field: Selector, clicked: Selector | None) -> Iterator[tuple[str, str]]:
    """What a field sends."""
    name, kind = field.attrib.get("name"), _kind(field)
    if not name or "disabled" in field.attrib:
        return
    if kind in _NOT_SENT:
        if clicked is not None and field.root is clicked.root and kind == "submit":
            yield name, field.attrib.get("value") or ""
    elif kind == "select":
        yield from ((name, value) for value in _chosen(field))
    elif kind == "textarea":
        yield name, "".join(field.xpath(".//text()").getall()).removeprefix("\n")
    elif kind not in {"checkbox", "radio"}:
        yield name, field.attrib.get("value") or ""
    elif "checked" in field.attrib:
        yield name, field.attrib.get("value", "on")


def _chosen(field: Selector) -> Iterator[str]:
    options = [one for one in field.xpath(".//option") if "disabled" not in one.attrib]
    chosen = [one for one in options if "selected" in one.attrib]
    if "multiple" not in field.attrib:
        chosen = chosen[-1:] or options[:1]
    for option in chosen:
        yield option.attrib.get("value", " ".join("".join(option.xpath(".//text()").getall()).split()))


def _each(values: object) -> list[object]:
    if values is None:
        return []
    return list(values) if isinstance(values, list | tuple) else [values]
