"""`serve_fake.py PLAN.JSON`: the entrypoint's session over a plan that a test wrote, without profile or model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from appliance.launch.plan import Plan, PlannedModel, Sourced
from entrypoint import processes
from entrypoint.display import PhaseLines
from entrypoint.main import address_of
from entrypoint.relay import Formatter, Redactor, secrets_of
from entrypoint.session import Session
from entrypoint.stream import Stream


def plan_of(record: dict[str, Any]) -> Plan:
    values = {name: Sourced(value, "default") for name, value in record["settings"].items()}
    model = PlannedModel("folder", "/nowhere", "", None, "unquantized", {}, "test")
    return Plan(
        profile="fake",
        title="a fake",
        engine="portable",
        served_model_name="small",
        gpus=(),
        settings=values,
        arguments={},
        passthrough=(),
        command=tuple(record["command"]),
        environment={"APPLIANCE_RUN_DIR": values["run_dir"]},
        model=model,
        draft=None,
        expected_acceleration=(),
        health=record["health"],
        memory=None,
        selection={},
        machine={},
    )


def main() -> int:
    plan = plan_of(json.loads(Path(sys.argv[1]).read_text()))
    processes.adopt_orphans()
    stream = Stream(Formatter(plan.setting("log_format") == "json"), Redactor(secrets_of(os.environ)), sys.stdout)
    stream.start()
    stream.show(PhaseLines(address_of(plan)), Path(plan.setting("run_dir")))
    try:
        return Session(plan, os.environ, stream).run()
    finally:
        processes.kill_descendants()
        stream.end()


sys.exit(main())
