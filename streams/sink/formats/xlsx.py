"""A workbook of Excel's: `rows.xlsx`. Written row by row, so memory does not grow with it."""

import re
from collections.abc import Callable
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZipFile

import msgspec

from crawlog.streams.errors import Misconfigured
from crawlog.streams.stores import needed

from .result_rows import ResultRows, Sink

SHEET_ROWS, COLUMNS, CELL = 1_048_576, 16_384, 32_767  # Limits of the format: rows, columns, characters of a cell

EXACT = 10**15 - 1  # The largest integer of which Excel keeps each digit

_illegal = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # no characters of XML


class Xlsx(Sink):
    """A header of all keys, then a record for each row; where a sheet is full, the next one begins with the header.

    Numbers and booleans are such, a missing or null value is empty, lists and dicts are JSON. A text that begins with
    `=` is a text, but with `spec.formulas`. The format has no place for longer texts than `CELL`: they are cut, and end
    with how long they were. Control characters become U+FFFD, and integers of more than 15 digits texts.
    """

    depends_on = ("formulas",)

    def check(self) -> None:
        """As `Sink.check`; and openpyxl must be there."""
        with needed("xlsx"):
            import openpyxl  # noqa: F401  # is it there?
        super().check()

    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Reads the rows twice: the header names all keys. Raises: Misconfigured: there are too many."""
        with needed("xlsx"):
            from openpyxl import Workbook
            from openpyxl.writer.excel import ExcelWriter

        header = rows.columns()
        if len(header) > COLUMNS:
            raise Misconfigured(
                f"{self.spec.output}: the rows have {len(header):,} different keys, and a sheet has at most"
                f" {COLUMNS:,} columns. Nothing is lost: name another output, such as -o FILE.csv or FILE.jsonl"
            )
        book, cell = Workbook(write_only=True), _cells(keeps_formulas=self.spec.formulas)
        for number, row in enumerate(rows):
            if number % (SHEET_ROWS - 1) == 0:
                sheet: Any = book.create_sheet(f"rows {len(book.worksheets) + 1}")
                sheet.append([cell(sheet, key) for key in header])
            sheet.append([cell(sheet, row.get(key)) for key in header])
        for one in book.worksheets or [book.create_sheet("rows 1")]:
            one.close()
        with ZipFile(out, "w", ZIP_DEFLATED) as archive:  # `book.save` leaves it open where the disk is full
            ExcelWriter(book, archive).save()


def _cells(*, keeps_formulas: bool) -> Callable[[Any, object], object]:
    """Makes what `append` of a sheet takes for a value."""
    from openpyxl.cell import WriteOnlyCell

    def cell(sheet: Any, value: object) -> object:
        if value is None or isinstance(value, float) or (isinstance(value, int) and -EXACT <= value <= EXACT):
            return value
        text = _fitting(value if isinstance(value, str) else msgspec.json.encode(value).decode())
        if not text.startswith("=") or keeps_formulas:
            return text
        as_text = WriteOnlyCell(sheet, text)
        as_text.data_type = "s"
        return as_text

    return cell


def _fitting(text: str) -> str:
    """A text that a cell can hold."""
    if len(text) > CELL:
        mark = f"… (cut: {len(text):,} characters)"
        text = text[: CELL - len(mark)] + mark
    return _illegal.sub("\ufffd", text)
