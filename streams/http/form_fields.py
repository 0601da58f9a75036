"""The fields of a form as browsers send them: application/x-www-form-urlencoded, in the encoding of its page."""

from collections.abc import Sequence
from urllib.parse import quote_plus, urlencode

import endec


def form_encoded(fields: Sequence[tuple[str, object]], encoding: str) -> str:
    """Fields, percent-encoded; what the encoding lacks is a reference by number.

    Args:
        fields: Names and values; a list of values is several fields.
        encoding: A WHATWG name, of which UTF-16 is sent as UTF-8, or one that only Python has.
    """
    return urlencode(fields, doseq=True, encoding=encoding, quote_via=_quoted)


def _quoted(text: str | bytes, safe: str | bytes, encoding: str | None = None, _errors: str | None = None) -> str:
    if isinstance(text, bytes) or encoding is None:
        return quote_plus(text, safe)
    return quote_plus(_encoded(text, encoding), safe)


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return endec.encode(text, encoding, "xmlcharrefreplace")
    except (LookupError, UnicodeEncodeError):  # a name that only Python has, or half a character
        return text.encode(encoding, "xmlcharrefreplace")
