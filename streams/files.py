"""Small files that are only ever seen whole, however many processes write them and whenever one is killed."""

import os
import secrets
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Puts a file in its place.

    Its name until then is nobody else's: services in containers share a folder, and all have the same process id.

    Raises: OSError: nothing was changed, nor left behind.
    """
    made = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        made.write_text(text)
        made.replace(path)
    except OSError:
        made.unlink(missing_ok=True)
        raise
