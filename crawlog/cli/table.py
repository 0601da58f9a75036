"""Columns of text."""

from collections.abc import Sequence


def table(lines: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Columns with two spaces between them; `right` names those aligned to the right."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    rows = (
        [
            text.rjust(width) if at in right else text.ljust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    )
    return ["  ".join(cells).rstrip() for cells in rows]
