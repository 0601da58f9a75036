"""Projects as code in the log: packed, signed, verified, unpacked into a cache, run in a child process.

DIR ─► pack ─► archive (ZIP) ─► sign ─► crawl.code ─► verify: a trusted key? ─► unpack ─► cache, by hash ─► child
"""

from .archive import MAX_FILES, MAX_UNPACKED_BYTES, ProjectArchive, opened, pack
from .cache import CodeCache, CodeFolder, code_notes
from .code_log import CodeEntry, CodeLog, unrunnable
from .keys import (
    SigningKey,
    folder_key,
    folder_key_path,
    is_intact,
    make_key,
    read_key,
    refusal,
    trusted_keys,
)
from .unpack import unpack

__all__ = [
    "MAX_FILES",
    "MAX_UNPACKED_BYTES",
    "CodeCache",
    "CodeEntry",
    "CodeFolder",
    "CodeLog",
    "ProjectArchive",
    "SigningKey",
    "code_notes",
    "folder_key",
    "folder_key_path",
    "is_intact",
    "make_key",
    "opened",
    "pack",
    "read_key",
    "refusal",
    "trusted_keys",
    "unpack",
    "unrunnable",
]
