"""The login form on its page: its target, its encoding, and the hidden fields that must be sent (CSRF tokens)."""

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawlog.streams.requests import origin_of
from crawlog.streams.session import Form
from crawlog.streams.url import InvalidUrl, serialise

from . import charset
from .extract import base_of
from .tree import tree_of

PAGE_BYTES = 1024 * 1024  # Bytes of a form's page that are parsed

MAX_FORMS, MAX_INPUTS = 32, 512  # Forms of a page and inputs of a form that are examined; a login needs no more


def filled_in(form: Form, body: bytes, content_type: str) -> Form | None:
    """The form on a page, with its hidden fields and the configured ones, which override them.

    It is one that is posted, within the page's own origin, and goes to the configured URL or asks for a password; of
    several the one with the most of the configured fields.

    Args:
        form: As configured; the page is the one at its URL.
    Returns: None where there is no such form.
    """
    try:
        page, encoding, *_ = tree_of(body[:PAGE_BYTES], content_type)
    except ValueError:  # the parser takes none of it
        return None
    base = base_of(page, form.url)
    wanted = {name for name, _ in form.fields}
    behind = _behind(page)
    best: tuple[tuple[int, bool, bool], str, str, list[LexborNode]] | None = None
    for node in page.css("form[method]")[:MAX_FORMS]:
        action = _action(node, base, form)
        if not action:
            continue
        inputs = _inputs(page, node, behind[node.mem_id])
        asks = any((one.attributes.get("type") or "").lower() == "password" for one in inputs)
        worth = len(wanted & {_name(one) for one in inputs}), action == form.url, asks
        if (action == form.url or asks) and (best is None or worth > best[0]):
            best = worth, action, node.attributes.get("accept-charset") or "", inputs
    if best is None:
        return None
    _, action, charsets, inputs = best
    hidden = [(_name(one), one.attributes.get("value") or "") for one in inputs if _is_hidden(one)]
    kept = tuple((name, value) for name, value in hidden if name not in wanted)
    return Form(form.origin, action, kept + form.fields, charset.of_form(charsets, encoding))


def _action(node: LexborNode, base: str, form: Form) -> str:
    """The target of a form; empty if it is not posted, or to another origin."""
    attributes = node.attributes
    if (attributes.get("method") or "").strip().lower() != "post":
        return ""
    action = (attributes.get("action") or "").strip()
    try:
        url = serialise(action, base).partition("#")[0] if action else form.url
    except InvalidUrl:
        return ""
    return url if origin_of(url) == form.origin else ""


def _inputs(page: LexborHTMLParser, node: LexborNode, behind: list[LexborNode]) -> list[LexborNode]:
    """A form's inputs: those in it that name no other form, and those elsewhere that name it."""
    name = node.attributes.get("id")
    inside = node.css("input")[:MAX_INPUTS] or behind[:MAX_INPUTS]
    inputs = [one for one in inside if one.attributes.get("form") in (None, name)]
    if name:
        known = {one.mem_id for one in inputs}
        elsewhere = (one for one in page.css("input[form]")[:MAX_INPUTS] if one.attributes["form"] == name)
        inputs += [one for one in elsewhere if one.mem_id not in known]
    return inputs


def _behind(page: LexborHTMLParser) -> dict[int, list[LexborNode]]:
    """By form, inputs up to the next one: a form that begins between the rows of a table does not hold its own."""
    found: dict[int, list[LexborNode]] = {}
    inputs: list[LexborNode] = []
    for one in page.css("form,input"):
        if one.tag == "form":
            inputs = found[one.mem_id] = []
        else:
            inputs.append(one)
    return found


def _name(node: LexborNode) -> str:
    return node.attributes.get("name") or ""


def _is_hidden(node: LexborNode) -> bool:
    attributes = node.attributes
    return (attributes.get("type") or "").lower() == "hidden" and bool(_name(node)) and "disabled" not in attributes
