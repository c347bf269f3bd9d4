"""The key: whatever a compiler may see changes it, and nothing else does."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import paths
from appliance.cache import facts as gathering
from appliance.cache.facts import SAMPLE, gather, model_hash
from appliance.cache.key import _ARGUMENTS, _ENVIRONMENT, NONE, PARTS, Facts, key_of, parts_of, relevant
from appliance.errors import CheckError
from appliance.launch import arguments
from appliance.launch.environment import folders, known_variables
from appliance.rundir.plan import PlanRecord

if TYPE_CHECKING:
    from pathlib import Path

FACTS = Facts(
    image="sha256:1", vllm="vllm 0.19.1", torch="torch 2.10.0", triton="triton 3.6.0", plugin="0.1.0 a", kernels="k",
    cpu="Xeon, flags 1", model="m", draft="d",
)  # fmt: skip


def gpu(index: int, name: str = "Tesla V100-SXM2-16GB", capability: tuple[int, int] | None = (7, 0)) -> dict[str, Any]:
    return {"index": index, "name": name, "capability": capability, "memory_bytes": 2**34, "uuid": f"GPU-{index}"}


def sourced(**values: Any) -> dict[str, Any]:
    return {name: {"value": value, "source": "profile p"} for name, value in values.items()}


PLAN: dict[str, Any] = {
    "profile": "p",
    "engine": "v100",
    "gpus": [0, 1],
    "machine": {"gpus": [gpu(0), gpu(1), gpu(2, "Tesla V100-SXM2-32GB")], "driver": "580.65.06"},
    "arguments": sourced(
        tensor_parallel_size=2,
        max_num_seqs=8,
        host="127.0.0.1",
        port=8000,
        model="/models/a",
        speculative_config={"method": "eagle3", "model": "/models/draft", "num_speculative_tokens": 2},
        additional_config={"sm70": {"w4": True}},
    ),
    "environment": sourced(VLLM_USE_AOT_COMPILE="1", VLLM_CACHE_ROOT="/var/a", HOME="/var/home", OMP_NUM_THREADS="1"),
    "health": {"start": 300},
}


def key(plan: dict[str, Any] | None = None, facts: Facts = FACTS, environ: dict[str, str] | None = None) -> str:
    return key_of(parts_of(PlanRecord.from_json(PLAN if plan is None else plan), facts, environ or {}))


def changed(*path: Any, to: Any) -> dict[str, Any]:
    plan = copy.deepcopy(PLAN)
    inner = plan
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return plan


@pytest.mark.parametrize("name", ["engine", "arguments", "environment", "gpus", "machine"])
def test_a_plan_that_lacks_something_has_no_key(name: str) -> None:
    with pytest.raises(CheckError, match=rf"plan\.json has no readable {name}"):
        key(changed(name, to=None))


def test_the_parts_are_those_of_the_design_and_readable() -> None:
    parts = parts_of(PlanRecord.from_json(PLAN), FACTS, {})
    assert tuple(parts) == PARTS
    assert parts["gpu"] == "Tesla V100-SXM2-16GB sm_70"
    assert parts["driver_major"] == "580"
    assert parts["model"] == "m draft d"


@given(st.dictionaries(st.text(), st.text(), min_size=1), st.data())
def test_any_part_that_changes_changes_the_key_and_their_order_does_not(parts: dict[str, str], data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(parts)))
    other = data.draw(st.text().filter(lambda text: text != parts[name]))
    assert key_of({**parts, name: other}) != key_of(parts)
    assert key_of(dict(reversed(parts.items()))) == key_of(parts)
    assert len(key_of(parts)) == 32


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_no_two_sets_of_parts_share_a_key(one: dict[str, str], two: dict[str, str]) -> None:
    assert (key_of(one) == key_of(two)) == (one == two)


@pytest.mark.parametrize("fact", [name for name in asdict(FACTS) if name != "cpu"])
def test_every_fact_is_in_the_key(fact: str) -> None:
    assert key(facts=replace(FACTS, **{fact: "other"})) != key()


def test_the_processor_counts_for_the_portable_engine_alone() -> None:
    assert key(facts=replace(FACTS, cpu="other")) == key()
    portable = changed("gpus", to=[])
    assert key(portable, replace(FACTS, cpu="other")) != key(portable)
    assert parts_of(PlanRecord.from_json(portable), FACTS, {})["driver_major"] == NONE


@pytest.mark.parametrize(
    "plan",
    [
        changed("machine", "gpus", 0, "name", to="Tesla V100-SXM2-32GB"),
        changed("machine", "gpus", 1, "capability", to=(7, 5)),
        changed("machine", "driver", to="581.1"),
        changed("engine", to="portable"),
        changed("arguments", "max_num_seqs", "value", to=9),
        changed("arguments", "max_num_seqs", "value", to="8"),
        changed("arguments", "tensor_parallel_size", "value", to=4),
        changed("arguments", "speculative_config", "value", "num_speculative_tokens", to=3),
        changed("arguments", "additional_config", "value", to={"sm70": {"w4": False}}),
        changed("arguments", "enforce_eager", to={"value": True, "source": "default"}),
        changed("environment", "VLLM_USE_AOT_COMPILE", "value", to="0"),
        changed("environment", "OMP_NUM_THREADS", "value", to="2"),
    ],
    ids=str,
)
def test_what_a_compiler_sees_changes_the_key(plan: dict[str, Any]) -> None:
    assert key(plan) != key()


@pytest.mark.parametrize(
    "plan",
    [
        changed("machine", "driver", to="580.95"),
        changed("machine", "gpus", 2, "name", to="A100"),
        changed("machine", "gpus", 0, "uuid", to="GPU-other"),
        changed("machine", "gpus", 0, "memory_bytes", to=2**34 - 1),
        changed("arguments", "max_num_seqs", "source", to="command line"),
        changed("arguments", "speculative_config", "value", "model", to="/elsewhere/draft"),
        changed("environment", "HOME", "value", to="/elsewhere"),
        changed("health", "start", to=900),
        changed("profile", to="another name"),
    ],
    ids=str,
)
def test_what_no_compiler_sees_does_not(plan: dict[str, Any]) -> None:
    assert key(plan) == key()


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.lists(st.text(max_size=4)))


@given(st.sampled_from(sorted(_ARGUMENTS)), VALUES)
def test_no_excluded_argument_is_in_the_key(name: str, value: Any) -> None:
    assert key(changed("arguments", name, to={"value": value, "source": "command line"})) == key()


@given(st.sampled_from(sorted(set(arguments.table()) - _ARGUMENTS)), st.text(min_size=1))
def test_every_other_argument_of_vllm_is(name: str, value: str) -> None:
    assert key(changed("arguments", name, to={"value": f"x{value}", "source": "command line"})) != key()


@given(st.sampled_from(sorted(_ENVIRONMENT)), st.text(max_size=20))
def test_no_excluded_variable_is_in_the_key(name: str, value: str) -> None:
    assert key(environ={name: value}) == key()
    assert key(changed("environment", name, to={"value": value, "source": "environment"})) == key()


@pytest.mark.parametrize(
    "name",
    ["TORCHINDUCTOR_MAX_AUTOTUNE", "TRITON_DEFAULT_FP_FUSION", "CUDA_LAUNCH_BLOCKING", "CXX", "VLLM_MLA_DISABLE"],
)
def test_what_the_engine_inherits_counts_and_the_plans_environment_wins(name: str) -> None:
    assert key(environ={name: "1"}) != key()
    plan = changed("environment", name, to={"value": "1", "source": "profile p"})
    assert key(plan, environ={name: "2"}) == key(plan) == key(environ={name: "1"})


@pytest.mark.parametrize(
    "name", ["VLLM_API_KEY", "VLLM_SOME_TOKEN", "TORCH_SECRET", "HF_TOKEN", "PATH", "USER", "HOSTNAME"]
)
def test_secrets_and_what_differs_in_every_pod_are_not_even_looked_at(name: str) -> None:
    assert key(environ={name: "value"}) == key()
    assert "value" not in json.dumps(list(relevant(PlanRecord.from_json(PLAN), {name: "value"})))


def test_names_that_are_left_out_are_names_that_there_are() -> None:
    assert set(arguments.table()) >= _ARGUMENTS
    assert {name for name in _ENVIRONMENT if name.startswith("VLLM_")} <= known_variables()


def test_no_folder_of_the_appliance_is_in_the_key() -> None:
    assert key(environ=folders("/one")) == key(environ=folders("/two")) == key()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 1}')
    (folder / "model.safetensors").write_bytes(bytes(4 * SAMPLE))
    (folder / "README.md").write_text("about")
    return folder


def test_the_models_hash_is_that_of_what_it_computes(model: Path) -> None:
    before = model_hash(model)
    (model / "README.md").write_text("other words")
    (model / ".sha256-stamp.json").write_text("{}")
    model.rename(model.with_name("moved"))
    assert model_hash(model.with_name("moved")) == before


@pytest.mark.parametrize("harm", ["config", "tokenizer", "size", "weights", "name"])
def test_another_configuration_or_other_weights_are_another_model(model: Path, harm: str) -> None:
    before = model_hash(model)
    weights = model / "model.safetensors"
    if harm == "config":
        (model / "config.json").write_text('{"hidden_size": 2}')
    elif harm == "tokenizer":
        (model / "tokenizer.json").write_text("{}")
    elif harm == "size":
        weights.write_bytes(bytes(4 * SAMPLE + 1))
    elif harm == "weights":
        weights.write_bytes(bytes(2 * SAMPLE) + b"\1" + bytes(2 * SAMPLE - 1))
    else:
        weights.rename(model / "other.safetensors")
    assert model_hash(model) != before


def test_a_model_that_was_not_fetched_has_no_key(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="models fetch"):
        model_hash(tmp_path / "none")


def test_facts_of_this_installation(model: Path, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    cpuinfo = tmp_path / "proc/cpuinfo"
    cpuinfo.write_text("processor: 0\nmodel name\t: Xeon\nflags\t: sse avx2\n\nprocessor: 1\nmodel name: Other\n")
    plan = {"model": {"folder": str(model)}, "draft": None}
    found = gather(PlanRecord.from_json(plan), {}, tmp_path)
    assert (found.image, found.draft) == ("source", NONE)
    assert gather(PlanRecord.from_json(plan), {"APPLIANCE_IMAGE": "sha256:9"}, tmp_path).image == "sha256:9"
    assert found.cpu.startswith("Xeon, flags ")
    cpuinfo.write_text("processor: 0\nmodel name\t: Xeon\nflags\t: avx2 sse\n")
    assert gather(PlanRecord.from_json(plan), {}, tmp_path).cpu == found.cpu
    cpuinfo.write_text("processor: 0\nmodel name\t: Xeon\nflags\t: avx2 avx512f sse\n")
    assert gather(PlanRecord.from_json(plan), {}, tmp_path).cpu != found.cpu
    assert gather(PlanRecord.from_json(plan | {"draft": {"folder": str(model)}}), {}, tmp_path).draft == found.model


def test_the_plugins_and_the_kernels_hash_follow_their_sources(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    source = tmp_path / "engine/plugin.py"
    source.write_text("one")
    before = gathering._tree(tmp_path, [tmp_path / "engine"])
    (tmp_path / "engine/__pycache__").mkdir()
    (tmp_path / "engine/__pycache__/plugin.pyc").write_text("compiled")
    assert gathering._tree(tmp_path, [tmp_path / "engine"]) == before
    source.write_text("two")
    assert gathering._tree(tmp_path, [tmp_path / "engine"]) != before
    built = tmp_path / "built"
    built.mkdir()
    without = gathering._kernels({"SM70_KERNELS_DIR": str(built)})
    (built / "manifest.json").write_text("{}")
    assert gathering._kernels({"SM70_KERNELS_DIR": str(built)}) != without


def test_the_plugins_own_sources_are_in_its_hash() -> None:
    package = paths.ROOT / "appliance"
    assert gathering._plugin() == gathering._tree(package, [package / "vllm_plugin", package / "acceleration"])
    assert gathering._plugin() != gathering._tree(package, [package / "acceleration"])
