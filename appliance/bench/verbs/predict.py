"""`appliance bench predict`: the decode step and the prefill of a profile, from kernels, library and bounds."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import paths
from appliance.bench.progress import for_stream
from appliance.errors import CheckError, ConfigurationError
from appliance.profiles import catalogue

if TYPE_CHECKING:
    from appliance.bench import predict
    from appliance.bench.predict_subject import Subject
    from sm70_kernels.predict.parts import Kernels

SUMMARY = "predict the decode step and the prefill of a profile on V100s; nothing is measured"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--profile", metavar="NAME", help="this one (APPLIANCE_PROFILE, else the most preferred)")
    parser.add_argument(
        "--context", type=_positive, nargs="+", metavar="N", help="tokens of each request (what the profile allows)"
    )
    parser.add_argument(
        "--concurrency", type=_positive, nargs="+", metavar="N", help="requests at once (what the profile allows)"
    )
    parser.add_argument(
        "--accepted", type=_accepted, metavar="X", help="tokens that a round gives a request, where there is a draft"
    )
    parser.add_argument("--decode-only", action="store_true", help="leave the prefill out, which can take minutes")
    parser.add_argument("--json", action="store_true", help="JSON for programs")


def run(arguments: argparse.Namespace) -> int:
    """Predict and print. Raises CheckError where the kernels' package is not installed."""
    # Before the imports: the sidecar's image has the control plane and no kernels.
    if importlib.util.find_spec("sm70_kernels") is None:
        raise CheckError("the Python package sm70_kernels is not installed here; predict where the engine is")
    from appliance.bench import predict, predict_report
    from appliance.bench.predict_subject import subject

    about = subject(catalogue.load(arguments.profile or os.environ.get("APPLIANCE_PROFILE") or _preferred()))
    if arguments.accepted is not None and not about.drafted:
        raise ConfigurationError(f"--accepted goes with a draft, and {about.name} has none; leave it out")
    if arguments.accepted is not None and arguments.accepted > 1 + about.drafted:
        raise ConfigurationError(f"--accepted {arguments.accepted:g}: a round gives at most {1 + about.drafted} tokens")
    contexts = predict.contexts(about, arguments.context)
    concurrencies = predict.concurrencies(about, arguments.concurrency)
    prompts = () if arguments.decode_only else predict.contexts(about, arguments.context, prompts=True)
    model = _model(about)
    wanted = predict.rows_wanted(about, prompts, concurrencies)
    with for_stream().bar("predicting kernels", len(wanted)) as bar:
        for number, (rows, logits) in enumerate(wanted):
            model(rows, logits)
            bar.reach(number + 1)
    found = predict_report.Prediction(
        about,
        tuple(predict.decode(about, length, many, model) for length in contexts for many in concurrencies),
        tuple(predict.prefill(about, length, model) for length in prompts),
        arguments.accepted if about.drafted else 1.0,
    )
    if arguments.json:
        print(json.dumps(predict_report.to_json(found), indent=1, ensure_ascii=False))
    else:
        print(predict_report.text(found))
    return 0


def _model(about: Subject) -> predict.Model:
    from appliance.bench import predict_kernels
    from appliance.bench.predict_subject import FAMILIES

    folder = Path(os.environ.get("APPLIANCE_STATE_DIR") or paths.default_state_dir()) / "predictions"

    @cache
    def model(rows: int, logits: int) -> Kernels:
        return predict_kernels.predict(rows, about.ranks, logits, FAMILIES[about.kind], folder)

    return model


def _preferred() -> str:
    return next(profile.name for profile in catalogue.load_all() if profile.engine == "v100")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number of at least 1')
    return int(text)


def _accepted(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of at least 1; a round gives one token for sure')
    return value
