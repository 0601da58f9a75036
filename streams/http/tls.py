"""The setting `network.tls`: which servers are spoken to over TLS 1.2. TLS 1.3 leaves nothing to choose."""

import ssl

COMPATIBLE, MODERN = "compatible", "modern"

_OF_CHROMIUM = (
    "ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:RSA+AESGCM:RSA+AES:!aNULL:!eNULL:!aDSS:!aPSK:!AESCCM:@SECLEVEL=1"
)
"""The ciphers of Chromium and of Python, those with forward secrecy first. Level 1 takes RSA keys of 1,024 bits."""

_WITHOUT_RFC_5746 = getattr(ssl, "OP_LEGACY_SERVER_CONNECT", 0x4)  # Python names it since 3.12
"""Takes servers without secure renegotiation. The hole is theirs, and it needs a client that renegotiates: ours never
does."""


def choose_ciphers(context: ssl.SSLContext, tls: str) -> None:
    """Sets the ciphers of a client's context, and whether it takes servers without RFC 5746.

    Args:
        tls: `compatible`, `modern`, or ciphers by OpenSSL's names, of which those without a certificate are left out.

    Raises: ssl.SSLError: none of the ciphers is known.
    """
    if tls == MODERN:
        return  # Python's own choice
    context.set_ciphers(_OF_CHROMIUM if tls == COMPATIBLE else f"{tls}:!aNULL:!eNULL")
    context.options |= _WITHOUT_RFC_5746
