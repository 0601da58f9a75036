"""Keys that sign deployed projects: Ed25519 (RFC 8032). A private key lies in a file of mode 0600, as PEM (PKCS 8).

A public key is 32 bytes, written as base64: `security.trusted_keys` and each signed manifest have it so.
"""

import binascii
import contextlib
import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from crawlog.schemas.code import CodeManifest, SignedManifest, encode, manifest_of
from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

KEY_BYTES = 32  # Length of a public key


class SigningKey:
    """A private key.

    Attributes:
        public: Its public key, base64.
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = b64encode(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()

    def sign(self, manifest: CodeManifest) -> SignedManifest:
        """The manifest with its signature."""
        text = encode(manifest)
        return SignedManifest(text.decode(), self.public, b64encode(self._private.sign(text)).decode())


def make_key(path: Path) -> SigningKey:
    """Write a new key into a new file.

    Raises: Misconfigured: the file exists, or cannot be written.
    """
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    made = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(text)
        os.link(made, path, follow_symlinks=False)  # never replaces a key: what it signed would be lost
    except FileExistsError:
        raise Misconfigured(f"{path} exists already, and no key is overwritten; `crawlog key show {path}`") from None
    except OSError as error:
        raise Misconfigured(f"the key {path} cannot be written: {error.strerror or error}") from None
    finally:
        made.unlink(missing_ok=True)
    return SigningKey(private)


def read_key(path: Path) -> SigningKey:
    """The key in a file.

    Raises: Misconfigured: there is none, or others can read or change it.
    """
    try:
        text = files.read_trusted(path)
        if path.stat().st_mode & files.OTHERS:
            raise PermissionError(f"others can read it: use `chmod 600 {path}`")
        private = load_pem_private_key(text, None)
    except OSError as error:
        raise Misconfigured(f"the key {path}: {error.strerror or error}; `crawlog key new {path}` makes one") from None
    except (ValueError, TypeError) as error:
        raise Misconfigured(f"{path} is no private key of Ed25519 without a password: {error}") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise Misconfigured(f"{path} is a key of another kind than Ed25519; `crawlog key new FILE` makes one")
    return SigningKey(private)


def folder_key_path(data: Path) -> Path:
    return data.absolute() / "run" / "code.key"


def folder_key(data: Path) -> SigningKey:
    """The data folder's own key, made at its first use: the workers on this folder trust it.

    Raises: Misconfigured: as `read_key`.
    """
    path = folder_key_path(data)
    if not path.exists():
        files.own(path.parent)
        with contextlib.suppress(Misconfigured):  # another process was faster; what else is wrong, `read_key` says
            return make_key(path)
    return read_key(path)


def trusted_keys(settings: "Settings") -> frozenset[bytes]:
    """The public keys whose signatures count here: `security.trusted_keys` and the data folder's own.

    Raises: Misconfigured: one is no key.
    """
    found = {_raw(text) for text in settings.security.trusted_keys}
    path = folder_key_path(settings.run.data)
    if path.exists():
        found.add(_raw(read_key(path).public))
    return frozenset(found)


def _raw(text: str) -> bytes:
    with contextlib.suppress(binascii.Error, ValueError):
        raw = b64decode(text, validate=True)
        if len(raw) == KEY_BYTES:
            return raw
    raise Misconfigured(f"{text!r:.60} is no public key of Ed25519 (32 bytes, base64); `crawlog key show` prints one")


def refusal(signed: SignedManifest, trusted: Collection[bytes]) -> str:
    """Why the signature of a manifest does not count; empty if it does."""
    try:
        key, signature = _raw(signed.key), b64decode(signed.signature, validate=True)
        if key not in trusted:
            return f"it is signed by the key {signed.key:.60}, which is not in security.trusted_keys"
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed.manifest.encode())
    except (Misconfigured, ValueError):
        return "its key or its signature is no base64"
    except InvalidSignature:
        return "its signature does not fit its contents"
    return ""


def is_intact(signed: SignedManifest) -> bool:
    """Whether a manifest was signed by the key that it names, trusted or not."""
    try:
        return not refusal(signed, {_raw(signed.key)})
    except Misconfigured:
        return False


def read_manifest(signed: SignedManifest, key: bytes) -> CodeManifest:
    """The manifest that a record has, unchecked but for its place.

    Args:
        key: Of the record.

    Raises: ValueError: it is no manifest, or belongs under another key.
    """
    from crawlog.schemas.code import MANIFEST
    from crawlog.schemas.code import key as key_of

    manifest = manifest_of(signed)
    if key != key_of(manifest.project, manifest.version, manifest.sha256, MANIFEST):
        raise ValueError(f"it is the manifest of {manifest.project} {manifest.version}, and stands under another key")
    return manifest
