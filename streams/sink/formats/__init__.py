"""Result formats: each is a class with `check` and `write`, registered by the suffix of its files.

    ResultRows ─┬─ json_text    JSON lines as the rows are kept, one JSON array; standard output, nothing at all
                ├─ csv_text     a header of all keys, a record for each row
                ├─ xlsx         a workbook, more sheets where one is full     openpyxl, `crawlog[xlsx]`
                ├─ parquet      typed columns, row groups in batches          pyarrow, `crawlog[parquet]`
                ├─ compressed   the text formats through gzip or zstd
                └─ remote       any of them at an address: S3, and what else fsspec opens
    warc_folder  where WARC files of pages go: no rows
    RowChanges ───► dataset     a store: a folder of Parquet files that grows while the job runs

`layout` has what a feed of Scrapy's asks for. `result_rows` has the class to derive from, and the rows as formats read
them.
"""

from .compressed import PACKERS, packed
from .csv_text import Csv
from .dataset import DataSet
from .json_text import JsonArray, JsonLines, Nothing, StandardOutput
from .layout import laid_out
from .parquet import Parquet
from .remote import remote
from .result_rows import ResultRows, Sink
from .warc_folder import WarcFolder
from .xlsx import Xlsx

__all__ = [
    "PACKERS",
    "Csv",
    "DataSet",
    "JsonArray",
    "JsonLines",
    "Nothing",
    "Parquet",
    "ResultRows",
    "Sink",
    "StandardOutput",
    "WarcFolder",
    "Xlsx",
    "laid_out",
    "packed",
    "remote",
]
