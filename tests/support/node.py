"""A broker as an operator runs it: Apache Kafka from crawlog's jars, with properties that crawlog does not choose."""

import contextlib
import subprocess
from pathlib import Path

import psutil

from crawlog.streams.engine import broker
from crawlog.streams.engine.jars import cache_folder, fetch_jars
from crawlog.streams.engine.java import archive, class_path, environ, find_java
from crawlog.streams.settings.settings import Settings

PROPERTIES = """\
process.roles=broker,controller
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=log
auto.create.topics.enable=false
message.max.bytes={most}
replica.fetch.max.bytes={most}
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.threads=1
"""
"""Of every node: that it is small, and takes records as large as ours are."""


class Node:
    """One broker, which is its own controller; it keeps its address and its disk.

    Args:
        folder: Its own.
        properties: Beside `PROPERTIES`: who it is, where it listens, how it replicates.
        options: Of Kafka's tool that formats its log.
    """

    def __init__(self, folder: Path, properties: str, cluster_id: str, *options: str) -> None:
        settings = Settings()
        jars = fetch_jars(settings, None, lambda _: None)
        self.folder = folder
        java = find_java(settings)
        archived = archive(java, jars, cache_folder(settings))  # by the local engine, if one has ever stopped
        self._java = [*java.command, *archived.use(), "-Xmx256m", "-cp", class_path(jars)]
        self._properties = folder / "server.properties"
        self._process: psutil.Popen | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(PROPERTIES.format(most=settings.kafka.max_record_bytes) + properties)
        tool = ["kafka.tools.StorageTool", "format", "--config", str(self._properties), f"--cluster-id={cluster_id}"]
        command = [*self._java, *tool, *options]
        subprocess.run(command, cwd=folder, env=environ(), check=True, stdout=subprocess.DEVNULL)

    @property
    def process(self) -> psutil.Popen:
        """Its process, once it was started."""
        assert self._process is not None, "it was started"
        return self._process

    @property
    def is_alive(self) -> bool:
        """Whether it runs; a stopped one does."""
        return self._process is not None and broker.is_alive(self._process)

    def start(self) -> None:
        """Again, as its operator would; it is not ready when this returns."""
        with (self.folder / "broker.log").open("ab") as log:
            command = [*self._java, "kafka.Kafka", str(self._properties)]
            self._process = psutil.Popen(command, cwd=self.folder, env=environ(), stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill -9, whether it is still there or not."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()
            self._process.wait()
