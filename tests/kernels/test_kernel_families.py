"""The list of families: what it must not import, and what a new family costs: one folder and one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import sm70_kernels
from sm70_kernels import families, registry, selftest
from sm70_kernels.build import ahead, manifest
from sm70_kernels.cases import cases
from sm70_kernels.predict import __main__ as command
from sm70_kernels.predict.step import launches_of
from sm70_kernels.proof.prove import prove
from sm70_kernels.proof.subject import subjects
from sm70_kernels.tuning import record
from sm70_kernels.tuning.tune import chosen, trials, tune

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(sm70_kernels.__file__).parent
FILES = {"__init__", "table", "operator", "pack", "reference", "cases", "subject", "predict", "tune", "choice"}
FILES |= {"alternatives", "budget", "kv_format", "recurrence", "checks", "log", "prefill"}  # shared inside a family
FILES |= {"questions", "solve", "findings", "measure", "__main__"}  # of the card

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from sm70_kernels import families, hardware, qwen38, registry
names = [module.__name__ for file in ("table", "predict", "cases") for module in families.modules(file)]
assert registry.registered()
import sm70_kernels.dense.choice, sm70_kernels.predict.__main__, sm70_kernels.predict.parts
print(*names)
"""


def test_tables_cases_and_predictions_import_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there = {
        f"sm70_kernels.{path.parent.name}.{path.stem}"
        for file in ("table", "predict", "cases")
        for path in PACKAGE.glob(f"*/{file}.py")
    }
    assert set(done.stdout.split()) == {name for name in there if name.split(".")[1] in families.FAMILIES}
    assert {"sm70_kernels.dense.table", "sm70_kernels.norm.predict"} <= there


def test_every_listed_family_is_a_folder_of_the_known_files() -> None:
    for family in families.FAMILIES:
        found = {path.stem for path in (PACKAGE / family).glob("*.py")}
        assert found <= FILES, family
        assert {"__init__", "cases", "reference"} <= found, family


def test_a_family_that_is_listed_and_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", ("nonesuch",))
    with pytest.raises(ModuleNotFoundError, match="nonesuch"):
        list(families.modules("table"))


TOY = {
    "__init__.py": "",
    "scale.cu": """
extern "C" __global__ void __launch_bounds__(THREADS) toy_scale(float* out, const float* x, int count) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) out[i] = 2 * x[i];
}
""",
    "table.py": """
from pathlib import Path
from sm70_kernels.registry import Kernel, Specialisation

SOURCE = str(Path(__file__).with_name("scale.cu"))
TOY = Kernel("toy_scale", source=SOURCE, entry="toy_scale", params="PPi", constants=("THREADS",))
SPECIALISATIONS = (Specialisation(TOY, {"THREADS": 128}),)
""",
    "reference.py": """
def toy_scale(x):
    return 2 * x
""",
    "operator.py": """
from sm70_kernels.launch import launch
from sm70_kernels.launch.outputs import new_like
from sm70_kernels.torch_library import like_first, register
from sm70_kernels.toy import reference, table


def _toy_scale(x):
    out = new_like(x)
    (spec,) = table.SPECIALISATIONS
    launch(spec, -(-x.numel() // spec.threads), (out, x, x.numel()))
    return out


register("toy_scale(Tensor x) -> Tensor", cuda=_toy_scale, cpu=reference.toy_scale, fake=like_first)
""",
    "cases.py": """
from sm70_kernels.cases import Case


def cases(scope):
    yield Case("toy_scale", {"count": 64 if scope == "selftest" else 1000})
""",
    "subject.py": """
import torch
import sm70_kernels.toy.operator
from sm70_kernels.proof.inputs import Maker
from sm70_kernels.proof.subject import Subject
from sm70_kernels.toy import reference

SUBJECTS = (
    Subject(
        operator="toy_scale",
        kernels=("toy_scale",),
        inputs=lambda case, device: (Maker(case, device).normal(case.sizes["count"], dtype=torch.float32),),
        run=torch.ops.sm70.toy_scale,
        reference=reference.toy_scale,
        moved_bytes=lambda case: 8 * case.sizes["count"],
    ),
)
""",
    "predict.py": """
from sm70_kernels.predict.launch import Buffer, Launch
from sm70_kernels.predict.work import Planned
from sm70_kernels.toy import table


def launches(step):
    (spec,) = table.SPECIALISATIONS
    count = 1024 * step.tokens
    args = (Buffer(4 * count), Buffer(4 * count, cold=True), count)
    yield Planned("toy", "toy", 3, spec, Launch(8 * step.tokens, args, f"count={count}"))
""",
    "tune.py": """
from dataclasses import dataclass

from sm70_kernels.predict.launch import Launch
from sm70_kernels.toy import table
from sm70_kernels.tuning.trial import Candidate, Trial


@dataclass(frozen=True)
class ToyTiming:
    ranks: int
    microseconds: tuple[float, ...]
    chosen: int


ROWS = {"toy_timings": ToyTiming}


def tune(ranks, device, report, *, compiling):
    report(f"toy: candidate 0 chosen on {device}, compiling {compiling}")
    return {"toy_timings": (ToyTiming(ranks, (1.5, 2.0), 0),)}


def trials(ranks, device):
    (spec,) = table.SPECIALISATIONS
    yield Trial("toy", f"ranks={ranks}", (Candidate(spec, Launch(1, ()), (lambda: None,)),))
""",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Add a family: its folder, and its line in the list. Nothing else is told of it."""
    folder = tmp_path / "toy"
    folder.mkdir()
    for name, text in TOY.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(sm70_kernels, "__path__", [*sm70_kernels.__path__, str(tmp_path)])
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, "toy"))
    monkeypatch.setenv("SM70_KERNELS_CACHE", str(tmp_path / "cache"))
    registry.registered.cache_clear()
    yield folder
    registry.registered.cache_clear()
    for name in [name for name in sys.modules if name.startswith("sm70_kernels.toy")]:
        del sys.modules[name]


def test_a_new_family_costs_one_folder_and_one_line(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The registry, and with it the build.
    (spec,) = (each for each in registry.registered() if each.kernel.name == "toy_scale")
    built, compiled = ahead.build([spec], tmp_path / "built", 1, lambda *_: None)
    assert compiled == 1
    assert manifest.read_form(tmp_path / "built", spec.name, built.kernels[spec.name], "cubin")

    # The proof and the self-test.
    subject = subjects()["toy_scale"]
    (case,) = cases("toy_scale", "suite")
    assert prove(subject, case, torch.device("cpu"), 2).passed
    result = selftest.run(["toy_scale"], torch.device("cpu"))["toy_scale"]
    assert (result.passed, result.cases) == (True, 1)

    # The predicting model and its command.
    (planned,) = (each for each in launches_of(2, 4) if each.part == "toy")
    assert (planned.family, planned.count) == ("toy", 3)
    assert command.main(["--kernel", "toy", "--m", "2"]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert " toy " in line
    assert "x3 " in line
    assert "count=2048" in line

    # The tuner and its record; the other families' candidates would want a GPU.
    everything = record.row_types()
    assert {"toy_timings", "timings", "crossings"} <= everything.keys()
    monkeypatch.setattr(families, "FAMILIES", ("toy",))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Tesla V100-SXM2-16GB")
    lines: list[str] = []
    found = tune(4, torch.device("cpu"), lines.append)
    assert lines == ["toy: candidate 0 chosen on cpu, compiling False"]
    tune(4, torch.device("cpu"), lines.append, compiling=True)
    assert lines[1:] == ["toy: candidate 0 chosen on cpu, compiling True"]
    assert [(each.family, each.what) for each in trials(4, torch.device("cpu"))] == [("toy", "ranks=4")]
    assert chosen(found) == 1
    assert record.parse(record.dump(found)) == found
