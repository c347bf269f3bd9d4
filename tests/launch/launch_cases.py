"""Checkpoints that are whole, and the shape of the fixture `ask`."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from appliance.launch.request import Request

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


class Ask(Protocol):
    """Makes a request for a recorded machine."""

    def __call__(
        self,
        machine: str,
        options: Mapping[str, str] = ...,
        after: Sequence[str] = ...,
        environ: Mapping[str, str] = ...,
    ) -> Request: ...


def write_serving_files(folder: Path) -> None:
    """Write what serving needs beside weights: a tokenizer with a chat template, and a generation config."""
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<e>", "chat_template": "{{ messages }}"}')
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')


def write_checkpoint(folder: Path, quantization: dict[str, Any] | None = None, architecture: str = "") -> Path:
    """Write the smallest checkpoint that is whole: one tensor of four bytes, with all that serving needs."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = {"architectures": [architecture or "Qwen3_5ForConditionalGeneration"]}
    if quantization:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    write_serving_files(folder)
    return folder
