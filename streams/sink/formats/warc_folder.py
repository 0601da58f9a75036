"""The output `warc:DIR`. It takes no rows: `streams/warc/` fills it from crawl.pages."""

import os
from importlib.util import find_spec
from pathlib import Path

from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink_groups import ARCHIVE

from .json_text import Nothing


class WarcFolder(Nothing):
    """WARC files of the job's pages, `-o warc:DIR`."""

    def check(self) -> None:
        """Refuses a folder that cannot be made or written."""
        folder = Path(self.spec.output.removeprefix(ARCHIVE))
        if find_spec("warcio") is None:
            raise Misconfigured(f"{self.spec.output} needs warcio: `pip install 'crawlog[warc]'`")
        if folder.exists() and not folder.is_dir():
            raise Misconfigured(f"cannot write WARC files in {folder}: it is a file; name a folder")
        place = folder if folder.exists() else folder.parent
        if not place.is_dir():
            raise Misconfigured(f"cannot make {folder}: there is no folder {place}; `mkdir -p` makes it")
        if not os.access(place, os.W_OK):
            raise Misconfigured(f"cannot write WARC files in {folder}: this user may not write in {place}")
