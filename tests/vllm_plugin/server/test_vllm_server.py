"""What the engine's program makes of vLLM's complaints. vLLM itself is played."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pydantic
import pytest

from appliance import paths
from appliance.rundir.rank_report import RankReport
from appliance.vllm_plugin import stack_dump
from appliance.vllm_plugin.server import serve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_process_wide_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_dump, "dump_on_signal", lambda: None)
    monkeypatch.setenv("APPLIANCE_RUN_DIR", "/nowhere")


def create_engine_config(error: Exception) -> NoReturn:
    """Has the name of the function in which vLLM judges its arguments."""
    raise error


def playing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    monkeypatch.setattr(serve, "_serve", act)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("max_num_batched_tokens (16)\n must be\tmore"), "max_num_batched_tokens (16) must be more"),
        (KeyError("invalid tool call parser: nix"), "invalid tool call parser: nix"),
        (TypeError("Error: no"), None),
        (
            OSError(2, "No such file or directory", "/m/config.json"),
            "[Errno 2] No such file or directory: '/m/config.json'",
        ),
        (ValueError("Error: --a requires --b"), "--a requires --b"),
        (ValueError(), "ValueError"),
        (NotImplementedError("Unknown dtype"), "Unknown dtype"),
    ],
)
def test_a_refused_configuration_is_one_line_and_exit_2(
    error: Exception, line: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    playing(monkeypatch, lambda: create_engine_config(error))
    if line is None:
        with pytest.raises(type(error)):
            serve.main()
        return
    assert serve.main() == 2
    assert capsys.readouterr().err == f"appliance.vllm_plugin.server.serve: error: {line}\n"


@pytest.mark.parametrize("error", [RuntimeError("CUDA driver not found"), ImportError("no _C"), MemoryError()])
def test_faults_keep_their_traceback_even_while_configuring(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, lambda: create_engine_config(error))
    with pytest.raises(type(error)):
        serve.main()


def test_the_same_error_later_on_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_busy_loop() -> NoReturn:
        raise ValueError("a bug")

    playing(monkeypatch, run_busy_loop)
    with pytest.raises(ValueError, match="a bug"):
        serve.main()


def test_pydantic_is_taken_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class CacheConfig(pydantic.BaseModel):
        block_size: int
        gpu_memory_utilization: float = pydantic.Field(le=1)

        @pydantic.model_validator(mode="before")
        @classmethod
        def together(cls, data: Any) -> Any:
            if data.get("together"):
                raise ValueError("block_size\nand page do not go together")
            return data

    playing(monkeypatch, lambda: _validated(CacheConfig, {"block_size": "big", "gpu_memory_utilization": 9}))
    assert serve.main() == 2
    assert capsys.readouterr().err == (
        f"{serve.PROGRAM}: error: block_size: Input should be a valid integer, unable to parse string as an "
        "integer (got 'big'); gpu_memory_utilization: Input should be less than or equal to 1 (got 9)\n"
    )
    playing(monkeypatch, lambda: _validated(CacheConfig, {"together": True}))
    assert serve.main() == 2
    assert capsys.readouterr().err == f"{serve.PROGRAM}: error: block_size and page do not go together\n"


def _validated(model: type[pydantic.BaseModel], values: dict[str, Any]) -> None:
    def create_engine_config() -> None:
        model(**values)

    create_engine_config()


def test_argparse_ends_it_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, lambda: sys.exit(2))
    with pytest.raises(SystemExit) as end:
        serve.main()
    assert end.value.code == 2


def test_children_inherit_a_run_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    playing(monkeypatch, lambda: seen.append(os.environ.get("APPLIANCE_RUN_DIR")))
    assert serve.main() == 0
    monkeypatch.delenv("APPLIANCE_RUN_DIR")
    assert serve.main() == 0
    monkeypatch.setenv("APPLIANCE_RUN_DIR", "")  # so that what main set is undone
    assert seen == ["/nowhere", str(paths.default_state_dir() / "run")]


@pytest.mark.parametrize(
    "module",
    ["server.serve", "register", "server.in_flight", "progress.step_record", "progress.activity", "stack_dump"],
)
def test_it_imports_neither_vllm_nor_torch(module: str) -> None:
    """Spawned processes import the main module anew, and these tests run where there is no vLLM."""
    code = f"import sys, appliance.vllm_plugin.{module}; print(*({{'vllm', 'torch'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


def test_a_rank_that_refuses_to_start_ends_the_server_as_a_mistake_of_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> NoReturn:
        raise RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")

    monkeypatch.setenv("APPLIANCE_RUN_DIR", str(tmp_path))
    playing(monkeypatch, fails)
    with pytest.raises(RuntimeError):
        serve.main()
    line = "VLLM_SM70_REQUIRE_PROFILE_ACCELERATION=1 refuses to start with 1 expected route off: fp8_dense (kv_dtype)"
    RankReport(refused=line).write(tmp_path, 2)
    assert serve.main() == 2
    assert capsys.readouterr().err == f"{serve.PROGRAM}: error: {line}\n"
