"""What the guardian takes out of a plan, and which of its own variables the engine inherits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from appliance.errors import CheckError
from appliance.rundir.plan import PlanRecord
from entrypoint import orders

if TYPE_CHECKING:
    from pathlib import Path


def plan() -> dict[str, Any]:
    settings = {"host": "127.0.0.1", "port": 8000, "on_engine_exit": "end", "max_restarts": 1}
    return {
        "command": ["python", "-m", "engine"],
        "settings": {name: {"value": value, "source": "default"} for name, value in settings.items()},
        "environment": {"HOME": {"value": "/state/home", "source": "derived"}},
        "arguments": {},
        "served_model_name": "small",
        "gpus": [],
        "health": {"start": 1, "progress": 2, "stall_grace": 3, "drain": 4},
    }


def test_the_engine_inherits_everything_but_the_appliances_own_secrets() -> None:
    own = {"APPLIANCE_API_KEY": "sk-1", "APPLIANCE_SIDECAR_TOKEN": "t-1", "APPLIANCE_API_KEY_FILE": "/run/secrets/key"}
    own |= {"HF_TOKEN": "hf-1", "HUGGING_FACE_HUB_TOKEN": "hf-2", "APPLIANCE_HF_TOKEN_FILE": "/run/secrets/hf_token"}
    theirs = {"VLLM_API_KEY": "sk-1", "PATH": "/bin", "HOME": "/root", "APPLIANCE_RUN_DIR": "/run/appliance"}
    found = orders.of(PlanRecord.from_json(plan()), {**own, **theirs})
    assert found.environment == {**theirs, "HOME": "/state/home"}
    assert found.api.key == "sk-1"


@pytest.mark.parametrize("name", sorted(plan()))
@pytest.mark.parametrize("value", [None, 3, "x"])
def test_a_plan_that_lacks_something_is_one_line(name: str, value: Any) -> None:
    if name == "served_model_name" and value == "x":
        return
    with pytest.raises(CheckError, match=rf"plan\.json has no readable {name}"):
        orders.of(PlanRecord.from_json(plan() | {name: value}), {})


def test_without_a_plan_there_are_no_orders(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"plan\.json is missing or unreadable"):
        orders.read(tmp_path, {})
