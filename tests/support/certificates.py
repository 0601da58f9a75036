"""Certificates of an authority of one's own, by the openssl of the machine."""

import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def authority(folder: Path) -> None:
    """Makes `ca.pem` and `ca.key`, for two days."""
    _openssl(
        folder, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority"
    )


def signed(folder: Path, name: str, alternative: str = "", *, by_itself: bool = False, days: int = 2) -> None:
    """Makes `NAME.pem` and `NAME.key`, by the folder's authority unless `by_itself`.

    Args:
        alternative: The subject's other names, such as `IP:127.0.0.1`.
        days: 0 for one that has ended as soon as its second has.
    """
    more = ("-addext", f"subjectAltName={alternative}") if alternative else ()
    wanted, made = f"{name}.csr", f"{name}.pem"
    _openssl(folder, "req", "-new", *_KEY, "-keyout", f"{name}.key", "-out", wanted, "-subj", f"/CN={name}", *more)
    by = ("-signkey", f"{name}.key") if by_itself else ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    _openssl(folder, "x509", "-req", "-in", wanted, "-copy_extensions", "copy", "-out", made, *by, "-days", str(days))
