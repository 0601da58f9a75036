"""The apps that `faust -A` names."""

from pathlib import Path

import click
import psutil
import pytest

from crawlog.streams import app
from crawlog.streams import engine as front
from crawlog.streams.engine.broker import USER, Identity
from crawlog.streams.engine.engine import Engine
from crawlog.streams.settings import Kafka, Settings
from crawlog.streams.settings.machine import Run


def test_an_app_reaches_the_local_engine_with_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`faust -A` with the data folder of a running `up` needs no other setting."""
    local = Engine(tmp_path, Identity("id", 9, 10), psutil.Process(), "secret")
    monkeypatch.setattr(front, "running", {tmp_path: local}.get)
    kafka = app.build("parse", Settings(run=Run(data=tmp_path))).crawl.kafka
    assert kafka.bootstrap == local.bootstrap
    assert (kafka.security_protocol, kafka.sasl_username) == ("SASL_PLAINTEXT", USER)
    assert kafka.sasl_password == "secret"


def test_faust_ends_with_one_line_where_there_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with exit code 2, as `crawlog worker` does; it was a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CRAWLOG_KAFKA__BOOTSTRAP", raising=False)
    monkeypatch.setattr(app, "_apps", {})
    with pytest.raises(click.UsageError, match="no local engine runs") as caught:
        _ = app.fetch
    assert caught.value.exit_code == 2


def test_an_app_takes_the_cluster_that_its_settings_name() -> None:
    """No local engine is looked for."""
    named = Settings(kafka=Kafka(bootstrap="127.0.0.1:1"))
    assert app.build("parse", named).crawl == named
