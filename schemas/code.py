"""crawl.code: projects as archives in chunks, then a signed manifest; compacted.

Key `PROJECT/VERSION/SHA256/N` of chunk N, bytes as they are; `PROJECT/VERSION/SHA256/manifest` of the manifest, JSON.
The manifest is written last: without it the chunks are no version. An archive is a ZIP of the project's files.
"""

from typing import Annotated

import msgspec

from .codec import decoded

VERSION = 1

CHUNK_BYTES = 1 << 20  # Size of a chunk; the last one is shorter

MAX_ARCHIVE_BYTES = 64 << 20  # Largest archive

MANIFEST = "manifest"  # Last part of a manifest's key

# A project's or version's name: it stands in keys, URLs and folders.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,127}\Z")]


class CodeManifest(msgspec.Struct, omit_defaults=True, frozen=True):
    """What the signature covers, as JSON in the order of these fields.

    Attributes:
        cluster: Kafka's cluster id: a manifest is of no use on another cluster.
        sha256: Of the archive, in hex.
        size: Of the archive, bytes.
        at: UTC epoch seconds of the deployment: the newest version of a project is the last one deployed.
        spiders: Names of its spiders, as a child process listed them.
        settings: Import path of Scrapy's settings; empty for a folder of crawlog's own spiders.
        by: Who deployed it, for people.
    """

    cluster: str
    project: Name
    version: Name
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_ARCHIVE_BYTES)]
    at: float
    spiders: tuple[str, ...] = ()
    settings: str = ""
    by: str = ""


class SignedManifest(msgspec.Struct, tag_field="v", tag=VERSION, frozen=True):
    """A manifest with its signature.

    Attributes:
        manifest: `CodeManifest` as JSON: the very bytes that are signed, as text.
        key: Public key of Ed25519 (RFC 8032), base64.
        signature: Of these bytes, base64.
    """

    manifest: str
    key: str
    signature: str


_decoder = msgspec.json.Decoder(SignedManifest)
_manifest = msgspec.json.Decoder(CodeManifest)
_encoder = msgspec.json.Encoder()


def key(project: str, version: str, sha256: str, part: int | str) -> bytes:
    """The key of a chunk, or of the manifest (`MANIFEST`)."""
    return f"{project}/{version}/{sha256}/{part}".encode()


def encode(record: SignedManifest | CodeManifest) -> bytes:
    return _encoder.encode(record)


def decode(value: bytes) -> SignedManifest:
    """The signed manifest. Raises: ValueError: it is none."""
    return decoded(_decoder, value)


def manifest_of(signed: SignedManifest) -> CodeManifest:
    """What is signed, unchecked. Raises: ValueError: it is no manifest."""
    return decoded(_manifest, signed.manifest)
