"""docker/kubernetes, docker/systemd and docker/supervisor: checked by the schemas and parsers of their readers."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from crawlog.cli.local import STAGES
from crawlog.streams.errors import Misconfigured
from crawlog.streams.exit_codes import FOR_GOOD
from crawlog.streams.log.topics import Topics, stage_group
from crawlog.streams.settings.settings import Settings, is_secret
from crawlog.streams.settings.sources import load
from tests.support.machines import compose

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "docker" / "kubernetes"
UNIT = ROOT / "docker" / "systemd" / "crawlog@.service"
GROUP = ROOT / "docker" / "supervisor" / "crawlog.conf"
KEDA = Path(__file__).with_name("keda-2.21.json")
"""Schemas of KEDA's resources: those of its release 2.21 without descriptions, and the names that its scaler reads."""

PODS = ("Deployment", "StatefulSet")

Resource = dict[str, Any]


@pytest.fixture(scope="module")
def resources() -> list[Resource]:
    """All of them."""
    return [one for file in sorted(KUBERNETES.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text())]


@pytest.fixture(scope="module")
def pods(resources: list[Resource]) -> dict[str, Resource]:
    """The pods' specifications by the stage that their container runs."""
    found = [one["spec"]["template"]["spec"] for one in resources if one["kind"] in PODS]
    return {pod["containers"][0]["args"][1]: pod for pod in found}


def test_kubernetes_takes_each_resource(resources: list[Resource]) -> None:
    """By the schemas of the newest version that the package carries."""
    validating = pytest.importorskip("kubernetes_validate", reason="the package kubernetes-validate is absent")
    own = [one for one in resources if not one["apiVersion"].startswith("keda.sh/")]
    for one in own:
        validating.validate(one, validating.latest_version(), strict=True)
    wrong = json.loads(json.dumps(next(one for one in own if one["kind"] == "StatefulSet")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(validating.ValidationError, match="readinesProbe"):
        validating.validate(wrong, validating.latest_version(), strict=True)


def test_keda_takes_the_scaling(resources: list[Resource]) -> None:
    """The lag is that of the group and topic that parse has by default; more replicas than partitions have no use."""
    schemas = json.loads(KEDA.read_text())
    scaling = {one["kind"]: one for one in resources if one["apiVersion"].startswith("keda.sh/")}
    assert scaling.keys() == schemas.keys()
    for kind, one in scaling.items():
        jsonschema.validate(one, schemas[kind])
    spec = scaling["ScaledObject"]["spec"]
    metadata = spec["triggers"][0]["metadata"]
    settings = next(one["data"] for one in resources if one["kind"] == "ConfigMap")
    assert metadata["consumerGroup"] == stage_group(Settings(), "parse")
    assert metadata["topic"] == Topics(Settings().kafka.prefix).pages
    assert metadata["bootstrapServers"] == settings["CRAWLOG_KAFKA__BOOTSTRAP"]
    assert spec["maxReplicaCount"] == int(settings["CRAWLOG_KAFKA__PARTITIONS"])
    assert spec["scaleTargetRef"]["name"] in {one["metadata"]["name"] for one in resources if one["kind"] in PODS}


def test_each_stage_has_pods_and_they_find_their_settings(resources: list[Resource], pods: dict[str, Resource]) -> None:
    """Without a cluster's own variables: a Service `crawlog` would set CRAWLOG_SERVICE_PORT, which is no setting."""
    assert pods.keys() == set(STAGES) - {"exit"}
    settings = next(one["data"] for one in resources if one["kind"] == "ConfigMap")
    assert not any(is_secret(key.removeprefix("CRAWLOG_").lower().replace("__", ".")) for key in settings)
    loaded = load(environ=settings)
    with pytest.raises(Misconfigured, match="CRAWLOG_SERVICE_PORT"):
        load(environ=settings | {"CRAWLOG_SERVICE_PORT": "6800"})
    for pod in pods.values():
        assert pod["enableServiceLinks"] is False
        assert [next(iter(one)) for one in pod["containers"][0]["envFrom"]] == ["configMapRef", "secretRef"]
        mounted = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        assert "/data" in mounted
        assert loaded.run.ready_file == Path("/tmp/ready")
        assert "/tmp" in mounted
    mounts = pods["sink"]["containers"][0]["volumeMounts"]
    assert str(loaded.sink.folder) in [mount["mountPath"] for mount in mounts]


def test_probes_look_at_the_ready_file_as_docker_does(pods: dict[str, Resource], tmp_path: Path) -> None:
    """A file that was touched a minute ago belongs to a process that hangs."""
    check = compose({})["fetch"]["healthcheck"]["test"][1]
    for stage in ("fetch", "parse", "sink", "start"):
        assert pods[stage]["containers"][0]["readinessProbe"]["exec"]["command"] == ["sh", "-c", check]
    file = tmp_path / "ready"
    command = check.replace("/tmp/ready", str(file))
    assert subprocess.run(["sh", "-c", command], check=False, capture_output=True).returncode == 1
    file.touch()
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
    subprocess.run(["touch", "-d", "2 minutes ago", str(file)], check=True)
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 1


def test_a_disruption_takes_one_worker_of_a_stage(resources: list[Resource]) -> None:
    """For each stage that has several pods, and for no others: one pod could never be moved."""
    budgets = {one["metadata"]["name"]: one["spec"] for one in resources if one["kind"] == "PodDisruptionBudget"}
    several = {one["metadata"]["name"]: one for one in resources if one["kind"] in PODS}
    assert budgets.keys() == {name for name, one in several.items() if one["spec"].get("replicas") != 1}
    for name, budget in budgets.items():
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == several[name]["spec"]["selector"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Without a word: an unknown key is a warning that ends with 0."""

    def verified(file: Path) -> str:
        command = ["systemd-analyze", "verify", "--man=no", str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert verified(UNIT) == ""
    wrong = tmp_path / UNIT.name
    wrong.write_text(UNIT.read_text().replace("RestartSec", "RestatSec"))
    assert "RestatSec" in verified(wrong)


@pytest.mark.parametrize(("instance", "stage"), [("fetch", "fetch"), ("parse:2", "parse")])
def test_the_instance_of_a_unit_names_its_stage(tmp_path: Path, instance: str, stage: str) -> None:
    """Several workers of a stage on one machine are units of their own."""
    line = next(line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    said = re.sub(r"%%", "%", line.removeprefix("ExecStart=").replace(" %i", f" {instance}").replace("$$", "$"))
    program = tmp_path / "crawlog"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o700)
    command = said.replace("/opt/crawlog/bin/crawlog", str(program))
    out = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
    assert out.split()[:2] == ["worker", stage]
    assert stage in STAGES


def test_supervisor_takes_the_group(tmp_path: Path) -> None:
    """By its own parser; an exit code that a new start cannot help is not tried again."""
    options = pytest.importorskip("supervisor.options", reason="the package supervisor is absent")
    main = tmp_path / "supervisord.conf"
    text = GROUP.read_text().replace("user=crawlog\n", "").replace("/var/log/crawlog", str(tmp_path))
    main.write_text(f"[supervisord]\nlogfile={tmp_path}/log\npidfile={tmp_path}/pid\n{text}")
    parsed = options.ServerOptions()
    parsed.realize(["-c", str(main)])
    (group,) = parsed.process_group_configs
    assert group.name == "crawlog"
    programs = {config.name: config for config in group.process_configs}
    assert programs.keys() == {"crawlog-fetch", "crawlog-parse-0", "crawlog-parse-1", "crawlog-sink", "crawlog-start"}
    for config in programs.values():
        assert config.command.split()[:2] == ["/opt/crawlog/bin/crawlog", "worker"]
        assert config.command.split()[2] in STAGES
        assert set(config.exitcodes) == FOR_GOOD


def test_units_restart_but_for_the_codes_that_cannot_be_helped() -> None:
    """As the table of exit codes has them."""
    assert f"RestartPreventExitStatus={' '.join(map(str, sorted(FOR_GOOD)))}\n" in UNIT.read_text()
