"""What a body is, where its header does not say or is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.http.sniff import computed

HTML = "text/html"


@pytest.mark.parametrize(
    ("content_type", "head", "kind"),
    [
        ("", b"<!doctype html>", HTML),
        ("", b"just words <a href=x>", HTML),
        ("", b"", HTML),
        ("", b"%PDF-1.7", "application/pdf"),
        ("*/*", b"\x89PNG\r\n\x1a\n\0\0", "image/png"),
        ("unknown/unknown", b"GIF89a...", "image/gif"),
        ("garbage", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("", b"RIFF\0\0\0\0WEBPVP8", "image/webp"),
        ("", b"\0\0\0\x18ftypmp42", "video/mp4"),
        ("", b"BM is a car", HTML),
        ("", b"BM\x36\x00\x0c", "image/bmp"),
        ("", b"\x00\x01\x02", "application/octet-stream"),
        ("", b"\xff\xfe<\x00h\x00", HTML),
        ("", b"<?xml version='1.0'?><a/>", "text/xml"),
        ("", b"\xef\xbb\xbf <?xml version='1.0'?><html>", "application/xhtml+xml"),
        ("", b"<?xml version='1.0'?><!-- x --><rss version=2>", "application/rss+xml"),
        ("text/html; charset=utf-8", b"<html>", HTML),
        ("Text/HTML", b"<feed xmlns='x'>", "application/atom+xml"),
        (HTML, b"<rdf:RDF >", "application/rdf+xml"),
        (HTML, b"<rssx>", HTML),
        (HTML, b"%PDF-", "application/pdf"),
        (HTML, b"\x00<html>", HTML),
        ("text/plain", b"<!doctype html>", "text/plain"),
        ("application/pdf", b"<html>", "application/pdf"),
    ],
)
def test_the_bytes_say_what_the_header_does_not(content_type: str, head: bytes, kind: str) -> None:
    """Signatures and feeds; what is not recognised is what the header says, else HTML."""
    assert computed(content_type, head) == kind


@given(st.text(max_size=20), st.binary(max_size=600))
def test_anything_has_a_type(content_type: str, head: bytes) -> None:
    """Never an exception."""
    assert "/" in computed(content_type, head)
