"""The manifests against what they promise: hardened, in step with the profiles, the settings and the servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest
import yaml

from appliance import __version__
from appliance.bench import run_directory
from appliance.launch import layers, settings
from appliance.launch.request import Request
from appliance.launch.resolve import resolve
from appliance.paths import ROOT, TOPOLOGIES
from appliance.profiles import catalogue
from appliance.topology import recorded
from entrypoint.life import STOP_SECONDS
from entrypoint.session import KILL_SECONDS, SLACK_SECONDS
from tests.kubernetes.kubernetes_manifests import (
    FILLER,
    KUBERNETES,
    OVERLAYS,
    Object,
    amount,
    budget_s,
    build,
    built,
    container,
    environment,
    objects,
    one,
    pod,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.launch.plan import Plan
    from appliance.profiles.schema import Profile

MACHINES = {
    "16gb": "4xv100-sxm2-16gb",
    "32gb": "4xv100-sxm2-32gb",
    "offline": "4xv100-sxm2-16gb",
    "portable": "none",
}
CONTAINERS = ("sidecar", "models", "engine")
LABELS = ("name", "instance", "component", "managed-by")
IN_THE_IMAGE = "/opt/appliance/"
SIDECAR_S = 10


def profile(overlay: str) -> Profile:
    return catalogue.load(environment(overlay, "engine")["APPLIANCE_PROFILE"])


def plan(overlay: str) -> Plan:
    machine = recorded.load(TOPOLOGIES / f"{MACHINES[overlay]}.json")
    # A key file is read while planning, and lies in the container only.
    given = {name: value for name, value in environment(overlay, "engine").items() if not name.endswith("_FILE")}
    return resolve(Request({}, (), given, machine, ROOT))


def parts(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_two_builds_are_the_same_and_no_name_comes_twice(overlay: str) -> None:
    assert build(KUBERNETES / "overlays" / overlay) == built(overlay)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects(overlay)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_recommended_labels_are_on_every_object(overlay: str) -> None:
    for each in objects(overlay):
        labels = each["metadata"]["labels"]
        assert {f"app.kubernetes.io/{name}" for name in LABELS} <= labels.keys()
        assert labels.get("app.kubernetes.io/version", __version__) == __version__
    assert one(overlay, "StatefulSet")["metadata"]["labels"]["app.kubernetes.io/version"] == __version__


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_can_never_be_changed_again_holds_no_version(overlay: str) -> None:
    spec = one(overlay, "StatefulSet")["spec"]
    assert all("labels" not in claim["metadata"] for claim in spec["volumeClaimTemplates"])
    assert set(spec["selector"]["matchLabels"]) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_selector_finds_the_pod(overlay: str) -> None:
    labels = one(overlay, "StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        one(overlay, "StatefulSet")["spec"]["selector"]["matchLabels"],
        one(overlay, "Service")["spec"]["selector"],
        one(overlay, "Service", "v100-appliance-health")["spec"]["selector"],
        one(overlay, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(overlay, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector and selector.items() <= labels for selector in selectors)


def test_the_filler_is_behind_no_selector_of_the_appliance() -> None:
    filler = yaml.safe_load(FILLER.read_text(encoding="utf-8"))
    selector = one("offline", "Service")["spec"]["selector"]
    assert not selector.items() <= filler["metadata"]["labels"].items()
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in filler["spec"]["volumes"]]
    assert claims == [f"models-{one('offline', 'StatefulSet')['metadata']['name']}-0"]


@pytest.mark.parametrize("name", [*OVERLAYS, "filler"])
def test_no_pod_has_more_rights_than_it_needs(name: str) -> None:
    spec = yaml.safe_load(FILLER.read_text(encoding="utf-8"))["spec"] if name == "filler" else pod(name)
    whole = spec["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] > 0
    assert whole["fsGroup"] > 0
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()
    assert not any("hostPath" in volume for volume in spec["volumes"])
    for each in parts(spec):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPort" in port for port in each.get("ports", ()))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_come_as_files_and_each_container_sees_its_own_alone(overlay: str) -> None:
    assert not any(each["kind"] == "Secret" for each in objects(overlay))
    items = {
        volume["name"]: [item["path"] for item in volume["secret"]["items"]]
        for volume in pod(overlay)["volumes"]
        if "secret" in volume
    }
    seen = {
        name: {
            f"{mount['mountPath']}/{path}"
            for mount in container(overlay, name)["volumeMounts"]
            for path in items.get(mount["name"], ())
        }
        for name in CONTAINERS
    }
    assert seen["models"] == set()
    for name in ("engine", "sidecar"):
        given = environment(overlay, name)
        assert {value for variable, value in given.items() if variable.endswith("_FILE")} == seen[name]
        assert not {"APPLIANCE_API_KEY", "APPLIANCE_SIDECAR_TOKEN", "VLLM_API_KEY"} & given.keys()
    assert all("valueFrom" not in each for name in CONTAINERS for each in container(overlay, name).get("env", ()))


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_every_variable_is_a_setting_of_the_right_kind(overlay: str, name: str, tmp_path: Path) -> None:
    given = environment(overlay, name)
    known = {setting.variable for setting in settings.SETTINGS.values()}
    assert given.keys() <= known
    settled = layers.settle({}, (), given, tmp_path).settings
    assert {settings.SETTINGS[each].variable for each in settled} == given.keys()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_folder_that_is_written_to_is_a_volume(overlay: str) -> None:
    mounts = {mount["mountPath"]: mount for mount in container(overlay, "engine")["volumeMounts"]}
    given = environment(overlay, "engine")
    folders = {value for name, value in given.items() if name.endswith("_DIR")}
    assert {*folders, "/tmp", "/dev/shm"} <= mounts.keys()
    assert not any(mounts[folder].get("readOnly") for folder in folders)
    declared = {volume["name"] for volume in pod(overlay)["volumes"]} | {
        claim["metadata"]["name"] for claim in one(overlay, "StatefulSet")["spec"]["volumeClaimTemplates"]
    }
    used = {mount["name"] for each in parts(pod(overlay)) for mount in each["volumeMounts"]}
    assert used == declared


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_run_directory_is_one_in_memory_and_the_sidecar_only_reads_it(overlay: str) -> None:
    run = environment(overlay, "engine")["APPLIANCE_RUN_DIR"]
    assert environment(overlay, "sidecar")["APPLIANCE_RUN_DIR"] == run
    mounts = {name: {m["mountPath"]: m for m in container(overlay, name)["volumeMounts"]}[run] for name in CONTAINERS}
    assert len({mount["name"] for mount in mounts.values()}) == 1
    assert mounts["sidecar"]["readOnly"] is True
    (volume,) = (each for each in pod(overlay)["volumes"] if each["name"] == mounts["engine"]["name"])
    assert volume["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_overlays_profile_fits_its_machine(overlay: str) -> None:
    planned = plan(overlay)
    assert planned.profile == profile(overlay).name
    assert planned.setting("force") is False
    tag = container(overlay, "engine")["image"].partition(":")[2]
    assert tag == profile(overlay).engine == container(overlay, "models")["image"].partition(":")[2]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_download_needs_no_gpu(overlay: str) -> None:
    """The container `models` sees none; `models fetch` plans with `force`."""
    container_of = container(overlay, "models")
    assert container_of["args"] == ["models", "fetch"]
    assert "nvidia.com/gpu" not in container_of["resources"]["requests"]
    here = recorded.load(TOPOLOGIES / "none.json")
    planned = resolve(Request({"force": "true"}, (), environment(overlay, "models"), here, ROOT))
    assert planned.profile == profile(overlay).name
    assert planned.model.folder.startswith("/models/")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pod_asks_for_what_the_profile_needs(overlay: str) -> None:
    needs, engine = profile(overlay).needs, container(overlay, "engine")
    for kind in ("requests", "limits"):
        assert engine["resources"].get(kind, {}).get("nvidia.com/gpu", 0) == needs.gpus
    assert bool(pod(overlay).get("tolerations")) == bool(needs.gpus)
    claims = {
        claim["metadata"]["name"]: amount(claim["spec"]["resources"]["requests"]["storage"])
        for claim in one(overlay, "StatefulSet")["spec"]["volumeClaimTemplates"]
    }
    # Twice: while another revision is fetched, the one before is still there.
    assert claims["models"] >= 2 * needs.disk_bytes
    assert claims["cache"] > int(environment(overlay, "engine")["APPLIANCE_CACHE_GIGABYTES"]) * 10**9 > 0
    (shm,) = (volume["emptyDir"] for volume in pod(overlay)["volumes"] if volume["name"] == "shm")
    assert shm["medium"] == "Memory"
    assert amount(shm["sizeLimit"]) >= needs.shm_bytes


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_start_gets_its_budget_twice_for_the_one_that_its_cache_spoilt(overlay: str) -> None:
    start = plan(overlay).health["start"]
    assert start == profile(overlay).health.start
    assert 2 * start + 30 <= budget_s(container(overlay, "engine")["startupProbe"]) <= 2 * start + 120


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_stall_is_judged_by_the_appliance_and_the_kubelet_adds_little(overlay: str) -> None:
    engine = container(overlay, "engine")
    assert 10 <= budget_s(engine["livenessProbe"]) <= profile(overlay).health.stall_grace
    assert budget_s(engine["readinessProbe"]) < budget_s(engine["livenessProbe"])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert engine[probe]["timeoutSeconds"] >= 5
        assert engine[probe]["timeoutSeconds"] <= engine[probe]["periodSeconds"]
        assert "initialDelaySeconds" not in engine[probe]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_end_gets_all_that_the_entrypoint_takes(overlay: str) -> None:
    engine = container(overlay, "engine")
    before = engine["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = profile(overlay).health.drain
    takes = before + drain + STOP_SECONDS + KILL_SECONDS + 5 + SLACK_SECONDS + SIDECAR_S
    assert takes <= pod(overlay)["terminationGracePeriodSeconds"] <= takes + 30


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_probes_of_the_engine_are_the_scripts(overlay: str) -> None:
    for probe, script in (("startupProbe", "startup"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
        assert container(overlay, "engine")[probe]["exec"]["command"] == [f"{IN_THE_IMAGE}healthchecks/{script}"]


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_the_script_of_a_probe_tells_a_ready_engine_from_none(probe: str, tmp_path: Path) -> None:
    (command,) = container("16gb", "engine")[probe]["exec"]["command"]
    script = ROOT / command.removeprefix(IN_THE_IMAGE)
    assert _exit_status(script, tmp_path) == 1
    run_directory.write_ready(tmp_path)
    assert _exit_status(script, tmp_path) == 0


def _exit_status(script: Path, run_dir: Path) -> int:
    given = {"PATH": os.environ["PATH"], "APPLIANCE_RUN_DIR": str(run_dir)}
    return subprocess.run([script], env=given, capture_output=True, timeout=30, check=False).returncode


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the real sidecar, started as its container does, over the run directory of no engine."""
    folder = tmp_path_factory.mktemp("sidecar")
    given = {name: value for name, value in environment("16gb", "sidecar").items() if not name.endswith("_FILE")}
    given |= {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    given |= {"APPLIANCE_SIDECAR_HOST": "127.0.0.1", "APPLIANCE_LOG_FORMAT": "plain"}
    given |= {f"APPLIANCE_{name}_DIR": str(folder / name) for name in ("RUN", "STATE", "CACHE")}
    command = [sys.executable, "-P", "-m", "appliance.cli", *container("16gb", "sidecar")["args"], "--port", "0"]
    with subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            assert process.stderr is not None
            said = ""
            while (address := re.search(r"listening on (http://127\.0\.0\.1:\d+)", said)) is None:
                line = process.stderr.readline()
                assert line, f"the sidecar ended: {said}"
                said += line
            yield address[1]
        finally:
            process.kill()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_sidecars_probes_pass_whatever_the_engine_does(overlay: str, sidecar: str) -> None:
    own = container(overlay, "sidecar")
    assert own["restartPolicy"] == "Always"
    assert "readinessProbe" not in own
    assert httpx.get(f"{sidecar}/health/live").status_code == 503
    for probe in ("startupProbe", "livenessProbe"):
        asked = own[probe]["httpGet"]
        assert httpx.get(f"{sidecar}{asked['path']}").status_code == 200
        assert asked["port"] in {port["name"] for port in own["ports"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_sidecar_outlives_the_start(overlay: str) -> None:
    started = pod(overlay)["initContainers"]
    assert [each["name"] for each in started] == ["sidecar", "models"]
    assert "restartPolicy" not in started[1]
    assert environment(overlay, "engine")["APPLIANCE_SIDECAR"] == "false"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_agree_from_setting_to_service(overlay: str) -> None:
    given = environment(overlay, "engine")
    for name, part, port, service in (
        ("engine", "", "api", "v100-appliance"),
        ("sidecar", "sidecar_", "health", "v100-appliance-health"),
    ):
        number = int(given[settings.SETTINGS[f"{part}port"].variable])
        assert number == settings.SETTINGS[f"{part}port"].default
        assert container(overlay, name)["ports"] == [{"name": port, "containerPort": number}]
        assert one(overlay, "Service", service)["spec"]["ports"] == [{"name": port, "port": number, "targetPort": port}]
        assert given[settings.SETTINGS[f"{part}host"].variable] == "0.0.0.0"
    assert given["APPLIANCE_ENGINE_URL"] == f"http://127.0.0.1:{given['APPLIANCE_PORT']}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_else_comes_in_and_little_goes_out(overlay: str) -> None:
    policy = one(overlay, "NetworkPolicy")["spec"]
    ports = {port["containerPort"] for each in parts(pod(overlay)) for port in each.get("ports", ())}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports
    out = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    offline = environment(overlay, "engine").get("APPLIANCE_OFFLINE") == "true"
    assert offline == (overlay in ("offline", "portable"))
    assert out == (set() if offline else {53, 443})


def test_the_32gb_overlay_can_go_offline_too(tmp_path: Path) -> None:
    copied = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copied)
    own = copied / "overlays" / "offline" / "kustomization.yaml"
    own.write_text(own.read_text(encoding="utf-8").replace("../16gb", "../32gb"), encoding="utf-8")
    found = {each["kind"]: each for each in yaml.safe_load_all(build(own.parent))}
    assert found["NetworkPolicy"]["spec"]["egress"] == []
    assert found["ConfigMap"]["data"]["APPLIANCE_PROFILE"] == "qwen38_27b_fp8_32k"
    assert found["ConfigMap"]["data"]["APPLIANCE_OFFLINE"] == "true"


def test_a_changed_setting_gets_a_new_name_and_so_restarts_the_pod() -> None:
    names = {one(overlay, "ConfigMap")["metadata"]["name"] for overlay in OVERLAYS}
    assert len(names) == len(OVERLAYS)


@pytest.mark.parametrize("overlay", ["16gb", "32gb"])
def test_the_monitor_scrapes_both_services_by_ports_that_they_have(overlay: str) -> None:
    monitor = one(overlay, "ServiceMonitor")["spec"]
    services = [one(overlay, "Service", name) for name in ("v100-appliance", "v100-appliance-health")]
    for service in services:
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    named = {port["name"] for service in services for port in service["spec"]["ports"]}
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == ["health", "api"]
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} == named


def test_the_sidecar_serves_what_the_monitor_asks_for(sidecar: str) -> None:
    paths = {endpoint["path"] for endpoint in one("16gb", "ServiceMonitor")["spec"]["endpoints"]}
    assert {httpx.get(f"{sidecar}{path}").status_code for path in paths} == {200}


def test_cards_are_preferred_by_labels_that_their_memory_fits() -> None:
    for overlay, gib in (("16gb", 16), ("32gb", 32)):
        machine = recorded.load(TOPOLOGIES / f"{MACHINES[overlay]}.json")
        (term,) = pod(overlay)["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        wanted = {each["key"].removeprefix("nvidia.com/gpu."): each for each in term["preference"]["matchExpressions"]}
        mib, bound = (machine.gpus[0].memory_bytes or 0) >> 20, int(wanted["memory"]["values"][0])
        assert mib > bound if wanted["memory"]["operator"] == "Gt" else mib < bound
        assert round(mib / 1024) == gib
        assert (wanted["compute.major"]["values"], wanted["compute.minor"]["values"]) == (["7"], ["0"])


def test_the_overlay_in_the_readme_puts_in_a_registry_of_ones_own(tmp_path: Path) -> None:
    copied = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copied)
    (example,) = re.findall(r"```yaml\n(.*?)```", (KUBERNETES / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    own = copied / "overlays" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text(example.replace("YOUR", "registry.test/us"), encoding="utf-8")
    (stateful,) = (each for each in yaml.safe_load_all(build(own)) if each["kind"] == "StatefulSet")
    images = {each["name"]: each["image"] for each in parts(stateful["spec"]["template"]["spec"])}
    assert images == {
        "sidecar": "registry.test/us/v100-appliance:sidecar",
        "models": "registry.test/us/v100-appliance:v100",
        "engine": "registry.test/us/v100-appliance:v100",
    }


def test_the_readme_names_every_overlay_and_fits_a_phone() -> None:
    text = (KUBERNETES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z0-9]+)` \|", text, re.MULTILINE)) == set(OVERLAYS)
    assert max(map(len, text.splitlines())) <= 50
