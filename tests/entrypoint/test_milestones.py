from __future__ import annotations

import pytest

from entrypoint.milestones import Errors, read

STAMP = "(EngineCore pid=12) INFO 11-29 13:43:25 [default_loader.py:384] "


@pytest.mark.parametrize(
    ("raw", "text", "level"),
    [
        (STAMP + "Loading weights took 2.5 seconds", "Loading weights took 2.5 seconds", "info"),
        ("(Worker_TP0 pid=7) WARNING 11-29 13:43:25 [a.py:1] careful", "careful", "warning"),
        ("(APIServer pid=9) INFO:     Started server process [9]", "Started server process [9]", "info"),
        ("ERROR: out of luck", "out of luck", "error"),
        ("INFORMATION about nothing", "INFORMATION about nothing", "info"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):", "info"),
        ("", "", "info"),
    ],
)
def test_the_prefix_of_a_line_tells_its_level(raw: str, text: str, level: str) -> None:
    line = read(raw)
    assert (line.text, line.level) == (text, level)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (
            "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  2.59it/s]",
            "Loading safetensors checkpoint shards 1/2",
        ),
        (
            "(Worker pid=3) Capturing CUDA graphs (mixed, PIECEWISE):  45%|████      | 5/11 [00:03<00:02,  1.2it/s]",
            "Capturing CUDA graphs (mixed, PIECEWISE) 5/11",
        ),
        ("model.safetensors: 100%|██| 1.2G/2.4G [00:03<00:02, 400MB/s]", "model.safetensors 1.2G/2.4G"),
    ],
)
def test_a_progress_bar_is_told_by_its_count(raw: str, shown: str) -> None:
    assert read(raw).bar == shown


def test_a_bar_that_only_tells_another_time_is_no_news_and_one_that_counts_on_is() -> None:
    first = read("Loading shards:  50% Completed | 1/2 [00:01<00:01,  1.0it/s]")
    later = read("Loading shards:  50% Completed | 1/2 [00:09<00:09,  9.0s/it]")
    next_one = read("Loading shards: 100% Completed | 2/2 [00:09<00:00,  9.0s/it]")
    assert first.key == later.key != next_one.key


def test_lines_that_differ_only_in_figures_have_one_key() -> None:
    assert read(STAMP + "rank 0 waits for 17 s").key == read(STAMP + "rank 3 waits for 18 s").key


def test_vllms_complaint_about_waiting_is_not_progress() -> None:
    waiting = "No available shared memory broadcast block found in 60 seconds. This typically happens when"
    assert not read(STAMP + waiting).progress
    assert read(STAMP + "anything else").progress
    assert not read("").progress


@pytest.mark.parametrize(
    "text",
    [
        "Loading weights took 2.53 seconds",
        "Model loading took 3.9 GiB memory and 12.3 seconds",
        "GPU KV cache size: 46,592 tokens",
        "Graph capturing finished in 20 secs, took 0.10 GiB",
        "init engine (profile, create kv cache, warmup model) took 3.73 seconds",
    ],
)
def test_lines_that_come_after_the_weights(text: str) -> None:
    assert read(STAMP + text).loaded


def test_starting_to_load_is_not_loaded() -> None:
    assert not read(STAMP + "Starting to load model /models/x...").loaded


def best(*lines: str) -> str | None:
    errors = Errors()
    for line in lines:
        errors.see(read(line))
    return errors.best


def test_the_root_cause_counts_more_than_those_who_noticed_it() -> None:
    error = "(EngineCore pid=1) ERROR 11-29 12:00:00 [core.py:9] "
    assert (
        best(
            error + "EngineCore failed to start.",
            error + "Traceback (most recent call last):",
            error + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "RuntimeError: Engine core initialization failed. See root cause above.",
        )
        == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    )


def test_what_the_engines_wrapper_and_argparse_say_of_wrong_options_is_found() -> None:
    refusal = "appliance: the engine refuses this configuration: max_model_len: too long (got 9)"
    assert best("INFO: hello", refusal) == refusal
    assert best("usage: serve [-h]", "serve: error: unrecognized arguments: --x") == (
        "serve: error: unrecognized arguments: --x"
    )


def test_without_an_error_there_is_nothing_to_tell() -> None:
    assert best("INFO: hello", "bye") is None
    assert best("vllm.v1.engine.exceptions.EngineDeadError: died") is not None


def test_the_mistake_of_a_client_an_hour_ago_is_not_why_the_engine_died() -> None:
    now = 0.0
    errors = Errors(clock=lambda: now)
    errors.see(read("ERROR: ValueError: max_tokens must be positive"))
    mistake = errors.best
    assert mistake is not None
    now = 3600.0
    assert errors.best is None
    errors.see(read("ERROR 11-29 12:00:00 [x.py:1] torch.AcceleratorError: CUDA error: unspecified launch failure"))
    assert errors.best == "torch.AcceleratorError: CUDA error: unspecified launch failure"
