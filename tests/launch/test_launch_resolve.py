"""From a recorded machine and what a person asked for to one plan, or one line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from appliance.commands.plan import to_text
from appliance.errors import ApplianceError, CheckError, ConfigurationError
from appliance.launch.command import MIDDLEWARE
from appliance.launch.generation import describe
from appliance.launch.options import read_options, settle
from appliance.launch.plan import Plan, Sourced
from appliance.launch.resolve import resolve
from appliance.paths import TOPOLOGIES
from appliance.profiles import catalogue
from tests.launch.launch_cases import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from tests.launch.launch_cases import Ask

pytestmark = pytest.mark.usefixtures("complete_build")


RELEASE = "qwen38_27b_nvfp4_dflash2"
FOUR = "4xv100-sxm2-16gb"


PLANNED: list[tuple[str, str, tuple[int, ...]]] = [
    ("4xv100-sxm2-16gb", RELEASE, (0, 1, 2, 3)),
    ("4xv100-sxm2-32gb", RELEASE, (0, 1, 2, 3)),
    ("8xv100-dgx1", RELEASE, (0, 1, 2, 3)),
    ("2xv100-sxm2-32gb", "qwen38_27b_fp8_tp2", (0, 1)),
    ("4xv100-pcie-split", "qwen38_27b_fp8_tp2", (0, 1)),
    ("3xv100-1xt4", "qwen38_27b_fp8_tp2", (0, 1)),
    ("none", "portable_smollm2", ()),
]


def argument(plan: Plan, name: str) -> Any:
    return plan.arguments[name].value


def words_of(plan: Plan) -> list[str]:
    """The engine's words after `python -m appliance.vllm_plugin.server.serve`."""
    assert plan.command[:3] == (sys.executable, "-m", "appliance.vllm_plugin.server.serve")
    return list(plan.command[3:])


def refusal(asked: Any, kind: type[ApplianceError] = ConfigurationError) -> str:
    with pytest.raises(kind) as said:
        resolve(asked)
    assert str(said.value).isprintable()
    return str(said.value)


@pytest.mark.parametrize(("machine", "profile", "gpus"), PLANNED)
def test_each_machine_has_its_plan(machine: str, profile: str, gpus: tuple[int, ...], ask: Ask) -> None:
    plan = resolve(ask(machine))
    assert (plan.profile, plan.gpus) == (profile, gpus)
    assert plan.environment["CUDA_VISIBLE_DEVICES"].value == ",".join(map(str, gpus))
    assert plan.memory is not None
    assert plan.memory["fits"]
    assert json.loads(json.dumps(plan.to_json()))["schema"] == 1
    assert "\n".join(to_text(plan, describe(plan, {}))).startswith(f"{profile}: ")
    # vLLM would read its words back as the same arguments.
    read = settle(read_options(words_of(plan), "words")).whole
    assert read == {name: sourced.value for name, sourced in plan.arguments.items()}


def test_a_machine_that_fits_nothing_hears_every_reason(ask: Ask) -> None:
    said = refusal(ask("1xh200"), CheckError)
    assert said.startswith("no profile fits this machine and model: ")
    for name in catalogue.names():
        assert f"{name}: " in said


def test_every_recording_is_tried() -> None:
    assert {path.stem for path in TOPOLOGIES.glob("*.json")} == {*(machine for machine, _, _ in PLANNED), "1xh200"}


def test_the_release_profile_reaches_the_command_line(ask: Ask, tmp_path: Path) -> None:
    plan = resolve(ask(FOUR, environ={"APPLIANCE_STATE_DIR": "/state"}))
    words = words_of(plan)
    target = "/state/models/QUASAR-QAT--Qwen3.8-27B-QUASAR-NVFP4@d8e6fbfa3e3a"
    draft = "/state/models/incoai--Qwen3.8-27B-DFlash2@dedf8df68adf"
    assert words[:8] == [
        "--model", target, "--served-model-name", "qwen3.8-27b", "--host", "127.0.0.1", "--port", "8000"
    ]  # fmt: skip
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "dflash", "model": draft, "num_speculative_tokens": 7
    }  # fmt: skip
    assert json.loads(words[words.index("--additional-config") + 1]) == {
        "sm70": {"partial_prefix_cache": True, "mixed_prefill_step_latency_ms": 0}
    }
    assert json.loads(words[words.index("--override-generation-config") + 1])["top_k"] == 20
    assert words[words.index("--middleware") + 1] == MIDDLEWARE
    assert plan.arguments["max_model_len"] == Sourced(262144, f"profile {RELEASE}")
    assert (plan.model.origin, plan.model.folder, plan.model.kind) == ("download", target, "nvfp4")
    assert plan.draft is not None
    assert plan.draft.revision == "dedf8df68adfb1afeaf7b7480c0a0243108177b4"
    assert set(plan.draft.files) == {"config.json", "model.safetensors"}
    assert plan.health == {"start": 2700, "progress": 600, "stall_grace": 120, "drain": 120}
    assert "all_reduce" in plan.expected_acceleration


def test_what_is_not_set_says_where_it_comes_from(ask: Ask) -> None:
    plan = resolve(ask("none", {"host": "0.0.0.0", "state_dir": "s"}))
    assert plan.settings["sidecar_host"] == Sourced("0.0.0.0", "derived: that of host")
    assert plan.settings["run_dir"] == Sourced(plan.setting("state_dir") + "/run", "derived: under state_dir")
    assert plan.settings["cache_dir"] == Sourced(plan.setting("state_dir") + "/cache", "derived: under state_dir")
    assert plan.settings["port"] == Sourced(8000, "default")
    assert plan.settings["drain"] == Sourced(30, "profile portable_smollm2")
    assert plan.settings["profile"] == Sourced("portable_smollm2", "derived: the best that fits")


def test_health_budgets_can_be_set(ask: Ask) -> None:
    plan = resolve(ask("none", {"drain": "5"}, environ={"APPLIANCE_STALL_GRACE": "7"}))
    assert (plan.health["drain"], plan.health["stall_grace"]) == (5, 7)
    assert plan.settings["stall_grace"].source == "environment APPLIANCE_STALL_GRACE"


def test_the_layers_reach_the_command_once_each(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("engine: {max_num_seqs: 2, block_size: 64, enable-prefix-caching: false}\n")
    plan = resolve(
        ask(
            "none",
            {"config": "c.yaml"},
            ["--max-num-seqs", "3", "--no-enforce-eager", "-q=fp8"],
            {"APPLIANCE_ENGINE_BLOCK_SIZE": "32"},
        )
    )
    assert plan.arguments["max_num_seqs"] == Sourced(3, "vllm options")
    assert plan.arguments["block_size"] == Sourced(32, "environment APPLIANCE_ENGINE_BLOCK_SIZE")
    assert plan.arguments["enable_prefix_caching"] == Sourced(False, f"file {tmp_path / 'c.yaml'}")
    assert plan.arguments["dtype"].source == "profile portable_smollm2"
    words = words_of(plan)
    assert words[-4:] == ["--max-num-seqs", "3", "--no-enforce-eager", "-q=fp8"]
    names = [word for word in words if word.startswith("-")]
    assert len(names) == len(set(names))
    assert "--enforce-eager" not in names
    assert "--no-enable-prefix-caching" in names


def test_one_key_of_a_json_argument_leaves_the_others(ask: Ask) -> None:
    plan = resolve(ask(FOUR, after=["-sc.num_speculative_tokens", "5", "--compilation-config.mode", "3"]))
    speculation = plan.arguments["speculative_config"]
    assert speculation.source == f"vllm options over profile {RELEASE}"
    assert (speculation.value["num_speculative_tokens"], speculation.value["method"]) == (5, "dflash")
    assert plan.draft is not None
    words = words_of(plan)
    assert words.count("--speculative-config") == 1
    assert "-sc.num_speculative_tokens" not in words
    # Nothing lies below this one, so that it stays as it was written.
    assert words[-2:] == ["--compilation-config.mode", "3"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (["--additional-config", '{"gdn_prefill_backend": "triton"}'], {"gdn_prefill_backend": "triton"}),
        (["--additional-config.sm70.all_reduce", "false"], {"sm70": {"all_reduce": False}}),
        (["--additional-config", '{"sm70": {"gdn_decode": false}}'], {"sm70": {"gdn_decode": False}}),
    ],
)  # fmt: skip
def test_a_persons_switches_join_the_profiles(after: list[str], expected: dict[str, Any], ask: Ask) -> None:
    found = argument(resolve(ask(FOUR, after=after)), "additional_config")
    switches = {"partial_prefix_cache": True, "mixed_prefill_step_latency_ms": 0} | expected.pop("sm70", {})
    assert found == {"sm70": switches, **expected}


def test_a_persons_middleware_joins_ours(ask: Ask) -> None:
    plan = resolve(ask("none", after=["--middleware", "a.B", "--middleware=c.D"]))
    assert argument(plan, "middleware") == [MIDDLEWARE, "a.B", "c.D"]


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ([], {"backend": "xgrammar"}),
        (["--structured-outputs-config.reasoning_parser", "a"], {"backend": "xgrammar", "reasoning_parser": "a"}),
        (["--structured-outputs-config.backend", "guidance"], {"backend": "guidance"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("machine", [FOUR, "none"])
def test_one_library_checks_and_compiles_structured_outputs(
    machine: str, after: list[str], wanted: dict[str, Any], ask: Ask
) -> None:
    assert argument(resolve(ask(machine, after=after)), "structured_outputs_config") == wanted


def test_a_library_for_each_request_is_refused(ask: Ask) -> None:
    said = refusal(ask("none", after=["--structured-outputs-config.backend", "auto"]))
    assert (
        "--structured-outputs-config.backend auto is refused: a request could pass its check and end the engine" in said
    )


@pytest.mark.parametrize("after", [["--speculative-config", "None"], ["-sc", ""]])
def test_speculation_can_be_taken_away(after: list[str], ask: Ask) -> None:
    plan = resolve(ask(FOUR, after=after))
    assert plan.draft is None
    assert "speculative_config" not in plan.arguments
    assert not any(word.startswith(("--speculative", "-sc")) for word in plan.command)
    assert plan.memory is not None
    assert "draft weights" not in {part["name"] for part in plan.memory["parts"]}


def test_speculation_written_anew_gets_the_profiles_draft_or_none(ask: Ask) -> None:
    anew = resolve(ask(FOUR, after=["--speculative-config", '{"method": "dflash", "num_speculative_tokens": 3}']))
    assert anew.draft is not None
    assert argument(anew, "speculative_config")["model"] == anew.draft.folder
    assert json.loads(words_of(anew)[words_of(anew).index("--speculative-config") + 1])["model"] == anew.draft.folder
    other = resolve(ask(FOUR, after=["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']))
    assert other.draft is None
    assert "model" not in argument(other, "speculative_config")


def test_folders_are_used_as_they_are(ask: Ask, target: Path, draft: Path) -> None:
    plan = resolve(ask(FOUR, {"model": "target", "draft": "draft"}, environ={"APPLIANCE_PROFILE": RELEASE}))
    assert plan.profile == RELEASE
    assert (plan.model.origin, plan.model.folder, plan.model.revision) == ("folder", str(target), None)
    assert plan.arguments["model"] == Sourced(str(target), "command line")
    assert plan.draft is not None
    assert (plan.draft.origin, plan.draft.folder, plan.draft.files) == ("folder", str(draft), {})
    assert argument(plan, "speculative_config") == {
        "method": "dflash", "model": str(draft), "num_speculative_tokens": 7
    }  # fmt: skip


def test_the_checkpoint_picks_the_profile(ask: Ask, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "fp8", {"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert resolve(ask("4xv100-sxm2-32gb", {"model": "fp8"})).profile.startswith("qwen38_27b_fp8_")


def test_bad_checkpoints_are_one_line(ask: Ask, target: Path) -> None:
    gone = target.parent / "gone"
    assert refusal(ask(FOUR, {"model": "gone"})) == (
        f"{gone}: does not exist; wanted the folder of a checkpoint, with its config.json"
    )
    assert str(gone) in refusal(ask(FOUR, {"draft": "gone"}))
    (target / "model.safetensors").unlink()
    assert str(target) in refusal(ask(FOUR, {"model": "target"}), CheckError)


def test_a_draft_without_a_use_is_refused(ask: Ask, draft: Path) -> None:
    assert refusal(ask("none", {"draft": "draft"})) == (
        f"command line: draft {draft}: profile portable_smollm2 drafts nothing"
    )


def test_a_pinned_profile_that_does_not_fit_stops_unless_forced(ask: Ask) -> None:
    environ = {"APPLIANCE_PROFILE": RELEASE}
    said = refusal(ask("1xh200", environ=environ), CheckError)
    assert said.startswith(f"profile {RELEASE} does not fit this machine: ")
    plan = resolve(ask("1xh200", environ=environ | {"APPLIANCE_FORCE": "1"}))
    assert plan.profile == RELEASE
    assert any(warning.startswith("forced although ") for warning in plan.warnings)


def test_an_unknown_profile_gets_the_nearest(ask: Ask) -> None:
    said = refusal(ask(FOUR, {"profile": "qwen38_27b_nvfp4_dflash"}))
    assert said.startswith(f'no profile "qwen38_27b_nvfp4_dflash"; did you mean "{RELEASE}"?')


def test_a_profile_file_of_ones_own(ask: Ask, tmp_path: Path) -> None:
    text = (TOPOLOGIES.parent / "profiles" / "portable_smollm2.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("portable_smollm2", "mine").replace("rank: 90", "rank: 91"))
    plan = resolve(ask("none", {"profile": "./mine.yaml"}))
    assert plan.profile == "mine"
    assert plan.settings["profile"] == Sourced("./mine.yaml", "command line")


@pytest.mark.parametrize(
    ("after", "number"),
    [
        (["--max-model-len", "2000000"], "2,000,000 tokens"),
        (["--gpu-memory-utilization", "0.97"], "gpu_memory_utilization"),
        (["-tp", "2"], "GiB"),
    ],
)
def test_an_argument_that_makes_it_not_fit_is_refused_with_the_numbers(after: list[str], number: str, ask: Ask) -> None:
    said = refusal(ask(FOUR, {"profile": RELEASE}, after), CheckError)
    assert number in said
    assert "GiB" in said
    forced = resolve(ask(FOUR, {"profile": RELEASE, "force": "true"}, after))
    assert forced.memory is not None
    assert not forced.memory["fits"]


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (["-asc", "2"], "--api-server-count 2 is refused: the heartbeat comes from one API server"),
        (["-dp", "2"], "--data-parallel-size 2 is refused: health watches one engine on one machine; start one "
         "appliance for each replica"),
        (["-pp", "2"], "--pipeline-parallel-size 2 is refused: the memory plan and the kernels are for tensor parallel "
         "ranks; use --tensor-parallel-size"),
        (["--disable-log-stats"], "--disable-log-stats is refused: the heartbeat, and with it health, is made of these "
         "statistics"),
        (["--uds", "/s"], "--uds /s is refused: health asks the engine over TCP; use --host and --port"),
        (["--hf-token", "hush"], "--hf-token is refused: the engine never goes to the network; set HF_TOKEN for "
         "`appliance models fetch`"),
        (["--config", "c"], "--config c is refused: its values would escape the plan; give them under `engine` in the "
         "file of --config before --"),
        (["--headless"], "--headless is refused: health asks the API server, which a headless engine has not"),
        (["-sc.num_speculative_tokens", "five"], 'num_speculative_tokens is "five"; wanted a whole number, 0 or more'),
    ],
)  # fmt: skip
def test_what_breaks_a_promise_is_refused_with_the_reason(after: list[str], message: str, ask: Ask) -> None:
    assert refusal(ask("none", after=after)) == f"vllm options: {message}"


@pytest.mark.parametrize("after", [["-asc", "1"], ["-dp", "1"], ["-pp", "1"], ["--node-rank", "0"]])
def test_the_same_arguments_with_harmless_values_pass(after: list[str], ask: Ask) -> None:
    assert tuple(after) == resolve(ask("none", after=after)).command[-2:]


def test_a_refused_argument_names_the_layer(ask: Ask) -> None:
    said = refusal(ask("none", environ={"APPLIANCE_ENGINE_DISABLE_LOG_STATS": "1"}))
    assert said.startswith("environment APPLIANCE_ENGINE_DISABLE_LOG_STATS: --disable-log-stats is refused")


def test_engine_and_sidecar_need_a_port_each(ask: Ask) -> None:
    assert refusal(ask("none", {"port": "8001"})) == (
        "port (command line) and sidecar_port (default) are both 8001; engine and sidecar need a port each"
    )
    # A sidecar in a container of its own has its ports to itself.
    assert resolve(ask("none", {"port": "8001", "sidecar": "false"})).setting("port") == 8001


@pytest.mark.parametrize(
    ("options", "environ", "source"),
    [
        ({"require_acceleration": "true"}, {}, "command line"),
        ({}, {"VLLM_SM70_REQUIRE_PROFILE_ACCELERATION": "1"}, "environment VLLM_SM70_REQUIRE_PROFILE_ACCELERATION"),
    ],
)
def test_acceleration_can_be_required_either_way(
    options: dict[str, str], environ: dict[str, str], source: str, ask: Ask
) -> None:
    plan = resolve(ask(FOUR, options, environ=environ))
    assert plan.settings["require_acceleration"] == Sourced(True, source)
    assert plan.environment["VLLM_SM70_REQUIRE_PROFILE_ACCELERATION"] == Sourced("1", source)


def test_several_names_are_served_and_the_first_is_the_name(ask: Ask) -> None:
    plan = resolve(ask("none", after=["--served-model-name", "a", "b"]))
    assert plan.served_model_name == "a"
    assert argument(plan, "served_model_name") == ["a", "b"]
    assert words_of(plan).count("--served-model-name") == 1


def test_the_shown_command_is_what_a_shell_runs(ask: Ask) -> None:
    plan = resolve(ask(FOUR, {"served_model_name": "it's $HOME"}))
    text = "\n".join(to_text(plan, describe(plan, {}))).partition("\nCommand\n")[2]
    script = f"set -- {text.strip()}\nprintf '%s\\n' \"$@\""
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == list(plan.command)


def test_the_engine_that_is_missing_is_told_on_this_machine_only(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace
    from importlib import metadata

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    recorded = ask(FOUR)
    live = replace(recorded, machine=replace(recorded.machine, source="NVML"))
    warning = (
        f"profile {RELEASE} needs the package vllm, which is not installed here; `make serve ENGINE=v100` installs it"
    )
    assert warning in resolve(live).warnings
    assert warning not in resolve(recorded).warnings
