"""The command `appliance` before any verb's own work: usage, exit status, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest

from appliance import __version__, cli, paths
from appliance.errors import CheckError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    PlanEndsWith = Callable[[int | BaseException], None]

ENGINE = {"torch", "vllm"}
SLOW = {"fastapi", "uvicorn", "rich", "requests", "huggingface_hub", "docker", "numpy"}
LIBRARIES = {"pydantic", "yaml", *ENGINE, *SLOW}


def imported_by(*words: str) -> set[str]:
    """Top-level modules that are loaded after `appliance WORDS` in a fresh interpreter."""
    code = (
        "import contextlib, io, sys\n"
        "from appliance.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    main({list(words)!r})\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


class Verb:
    """Stands in for a verb's module."""

    SUMMARY = "a verb of the test"

    def __init__(self, outcome: int | BaseException) -> None:
        self.outcome = outcome

    def configure(self, parser: object) -> None:
        pass

    def run(self, arguments: object) -> int:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def plan_ends_with(monkeypatch: pytest.MonkeyPatch) -> PlanEndsWith:
    def install(outcome: int | BaseException) -> None:
        monkeypatch.setitem(sys.modules, "appliance.commands.plan", cast("ModuleType", Verb(outcome)))

    return install


def test_help_lists_every_verb_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for verb, summary in cli.VERBS.items():
        assert f"  {verb} " in out
        assert summary in out


def test_no_verb_shows_the_same_and_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().out
    cli.main(["-h"])
    assert capsys.readouterr().out == shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"appliance {__version__}\n"


def test_a_misspelt_verb_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith('appliance: no verb "profile"; did you mean "profiles"?')
    assert said.err.count("\n") == 1


def test_a_verb_like_no_other_gets_no_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xyzzy"]) == 2
    said = capsys.readouterr().err
    assert said == 'appliance: no verb "xyzzy"; `appliance --help` lists them\n'


@pytest.mark.parametrize("verb", ["../launch", "commands.plan", "", "Plan", "__init__", "--json"])
def test_only_the_verbs_are_ever_imported(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb]) == 2
    assert "no verb" in capsys.readouterr().err


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_verb_sets_the_exit_status(status: int, plan_ends_with: PlanEndsWith) -> None:
    plan_ends_with(status)
    assert cli.main(["plan"]) == status


@pytest.mark.parametrize(("error", "status"), [(CheckError("GPU 2 vanished"), 1), (ConfigurationError("odd"), 2)])
def test_an_error_is_one_line_and_its_own_status(
    error: Exception, status: int, plan_ends_with: PlanEndsWith, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_ends_with(error)
    assert cli.main(["plan"]) == status
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"appliance: {error}\n")


def test_ctrl_c_is_no_traceback(plan_ends_with: PlanEndsWith) -> None:
    plan_ends_with(KeyboardInterrupt())
    assert cli.main(["plan"]) == 130


def test_an_unknown_option_is_bad_usage(plan_ends_with: PlanEndsWith, capsys: pytest.CaptureFixture[str]) -> None:
    plan_ends_with(0)
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "--no-such-option"])
    assert ended.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    code = (
        "import sys, types\n"
        "verb = types.ModuleType('appliance.commands.plan')\n"
        "verb.SUMMARY, verb.configure = '', lambda parser: None\n"
        "def run(arguments):\n"
        "    for _ in range(200_000):\n"
        "        print('a line of the plan')\n"
        "verb.run = run\n"
        "sys.modules['appliance.commands.plan'] = verb\n"
        "from appliance.cli import main\n"
        "sys.exit(main(['plan']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"a line of the plan\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("xyzzy",)])
def test_usage_needs_no_library(words: tuple[str, ...]) -> None:
    assert not imported_by(*words) & LIBRARIES


RECORDED = ("--topology", str(paths.TOPOLOGIES / "4xv100-sxm2-16gb.json"))


@pytest.mark.parametrize(
    "words",
    [
        ("topology", *RECORDED, "--json"),
        ("profiles", "list", *RECORDED),
        ("profiles", "show", "portable_smollm2"),
        ("profiles", "select", *RECORDED, "--json"),
        ("plan", *RECORDED, "--json"),
        ("plan", "--settings"),
        ("probe", "ready", "--run-dir", "/nowhere"),
        ("sidecar", "--help"),
    ],
)
def test_a_decision_needs_neither_the_engine_nor_a_slow_library(words: tuple[str, ...]) -> None:
    assert not imported_by(*words) & (ENGINE | SLOW)
