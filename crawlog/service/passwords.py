"""Compares passwords and tokens with what the settings hold: the text itself, or its hash.

`python -m crawlog.service.passwords` reads a password from standard input and prints its hash.
"""

import base64
import hashlib
import hmac
import os
import sys

N, R, P = 1 << 14, 8, 1
"""Cost of a new hash: 16 MiB and some 40 ms."""

SCRYPT_MEMORY = 256 << 20
"""Most memory that a hash in the settings may ask for, bytes."""


def matches(given: str, kept: str) -> bool:
    """Whether a password is the one that the settings hold; takes the same time for wrong ones."""
    parts = kept.split("$")
    try:
        if kept.startswith("scrypt$") and len(parts) == 6:
            n, r, p = map(int, parts[1:4])
            return hmac.compare_digest(_scrypt(given, parts[4], n, r, p), _decoded(parts[5]))
        if kept.startswith("pbkdf2_sha256$") and len(parts) == 4:
            made = hashlib.pbkdf2_hmac("sha256", given.encode(), parts[2].encode(), int(parts[1]))
            return hmac.compare_digest(made, _decoded(parts[3]))
    except ValueError:
        return False
    digest = hashlib.sha256(given.encode(errors="surrogateescape")).digest()  # a header may hold any byte
    return hmac.compare_digest(digest, hashlib.sha256(kept.encode()).digest())


def hashed(password: str) -> str:
    """The hash of a password, for the settings."""
    salt = base64.b64encode(os.urandom(12)).decode()
    made = base64.b64encode(_scrypt(password, salt, N, R, P)).decode()
    return f"scrypt${N}${R}${P}${salt}${made}"


def is_hash(kept: str) -> bool:
    """Whether comparing takes long."""
    return kept.startswith(("scrypt$", "pbkdf2_sha256$"))


def _scrypt(password: str, salt: str, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt.encode(), n=n, r=r, p=p, maxmem=SCRYPT_MEMORY, dklen=32)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))


if __name__ == "__main__":
    sys.stdout.write(hashed(sys.stdin.readline().rstrip("\n")) + "\n")
