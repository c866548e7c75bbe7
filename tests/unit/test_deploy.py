"""What `deploy/` contains is valid, and asks for commands and settings that exist. No image is built."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.call import Call
from penstock.cli.main import penstock
from penstock.config import load_config

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "penstock"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EVERYTHING = (
    "consumer.enabled=true",
    "consumer.only={s3://a,s3://b}",
    "ingress.enabled=true",
    "worker.pools=extract=2",
)


def tool(name: str, *arguments: str | Path) -> str:
    command = [str(Path(sys.executable).with_name(name)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(*values: str) -> list[dict[str, Any]]:
    options = [word for value in (*EVERYTHING, *values) for word in ("--set", value)]
    return [one for one in yaml.safe_load_all(tool("helm", "template", "rel", CHART, *options)) if one]


def pods(resources: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in resources:
        if one["kind"] in ("Deployment", "Job"):
            yield one["spec"]["template"]["spec"]


def accepted(arguments: Sequence[str]) -> None:
    """Parse the arguments of `penstock` as the command line does."""
    with penstock.make_context("penstock", list(arguments), obj=Call()) as context:
        rest = [*context._protected_args, *context.args]
        group: Any = penstock
        while rest:
            name, command, rest = group.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
            if not hasattr(command, "resolve_command"):
                return
            group, rest = command, [*context._protected_args, *context.args]
    raise AssertionError(arguments)


def test_the_dockerfile_is_valid() -> None:
    tool("hadolint", DEPLOY / "docker" / "Dockerfile")


def test_the_image_has_the_tested_versions() -> None:
    text = (DEPLOY / "docker" / "requirements.lock").read_text()
    pin = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.M)
    tested = dict(pin.findall((ROOT / "requirements.lock").read_text()))
    found = dict(pin.findall(text))
    assert len(found) > 40
    assert {name: version for name, version in found.items() if tested.get(name) != version} == {}
    assert "://" not in text, "a lock file names no host"


def test_the_compose_file_is_valid() -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ours = [service for service in services.values() if service.get("image") == "penstock"]
    assert len(ours) == 3
    for service in ours:
        accepted(service["command"])
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (COMPOSE.parent / source).exists(), source


@pytest.mark.parametrize("kind", ["none", "hpa", "keda"])
def test_the_chart_is_valid(kind: str, tmp_path: Path) -> None:
    tool("helm", "lint", "--strict", CHART, "--set", f"worker.autoscaling.kind={kind}")
    resources = rendered(f"worker.autoscaling.kind={kind}")
    # The kinds of KEDA are not among those that this tool knows.
    known = [one for one in resources if one["kind"] != "ScaledObject"]
    file = tmp_path / "resources.yaml"
    file.write_text(yaml.safe_dump_all(known))
    tool("kubernetes-validate", "--strict", file)
    scaled = {"none": set(), "hpa": {"HorizontalPodAutoscaler"}, "keda": {"ScaledObject"}}[kind]
    assert {one["kind"] for one in resources} & {"HorizontalPodAutoscaler", "ScaledObject"} == scaled
    [worker] = [one for one in resources if one["metadata"]["name"] == "rel-worker" and one["kind"] == "Deployment"]
    assert ("replicas" in worker["spec"]) == (kind == "none"), "an autoscaler decides"


def test_the_chart_asks_for_commands_and_settings_that_exist(tmp_path: Path) -> None:
    resources = rendered()
    for pod in pods(resources):
        [container] = pod["containers"]
        accepted(container["args"])
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["securityContext"]["runAsNonRoot"] is True
    [config] = [one for one in resources if one["kind"] == "ConfigMap"]
    file = tmp_path / "penstock.yaml"
    file.write_text(config["data"]["penstock.yaml"])
    assert load_config({"database": "postgresql://h/d"}, environment={}, file=file).blobs == "s3://penstock"


def test_the_chart_refuses_an_unknown_autoscaler() -> None:
    with pytest.raises(AssertionError, match="use none, hpa or keda"):
        rendered("worker.autoscaling.kind=vpa")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_units_are_valid(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    [line] = re.findall(r"^ExecStart=/opt/penstock/bin/penstock (.*)$", text, re.M)
    accepted(line.split())
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    # The command must exist.
    copy.write_text(text.replace("/opt/penstock/bin/penstock", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])
