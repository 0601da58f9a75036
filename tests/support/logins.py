"""How a command that `--bootstrap` leads to a local broker is started, and gets the password: in its environment."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from crawlog.streams.settings.settings import Settings, environ_name

LOGIN = ("security_protocol", "sasl_mechanism", "sasl_username", "sasl_password")


def login(settings: Settings) -> dict[str, str]:
    """The variables that hold the credentials of these settings; other users do not see them, as they see arguments."""
    return {environ_name(f"kafka.{name}"): getattr(settings.kafka, name) for name in LOGIN}


def start(words: Sequence[str], said: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A command of crawlog, in the folder of the file to which all that it says is added."""
    with said.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "crawlog", *words],
            cwd=said.parent,
            stdout=file,
            stderr=file,
            env=os.environ | environ,
        )
