"""Lengths of time as people write them: `90`, `45s`, `30m`, `6h`, `7d`, `2w`, `1d12h`."""

import re

_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}

_SPAN = re.compile(r"(?=.)" + "".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _UNITS))

LONGEST_S = 100 * 366 * 86_400.0  # A longer one is a typing error


def span_s(text: str | float) -> float:
    """Seconds of a length of time; a number without a unit is seconds.

    Raises: ValueError: it is none, or not above 0 and at most a hundred years.
    """
    try:
        seconds = float(text)
    except ValueError:
        found = _SPAN.fullmatch(str(text).strip())
        if found is None:
            raise ValueError(f"{text!r:.60} is no length of time; write 45s, 30m, 6h, 7d or 1d12h") from None
        parts = zip(found.groups(), _UNITS.values(), strict=True)
        seconds = sum(float(number) * unit for number, unit in parts if number)
    if not 0 < seconds <= LONGEST_S:
        raise ValueError(f"{text!r:.60}: a length of time is above 0 and at most a hundred years")
    return seconds
