"""Converts a GGUF file into the folder of safetensors that vLLM serves. Runs as a program of its own.

`python -m appliance.models.convert_gguf FILE FOLDER`: prints each stage on standard output; a failure is one line on
standard error and exit status 1, and whatever is in FOLDER is then worth nothing.
"""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path
from typing import Any

BESIDE_WEIGHTS = 64 << 20
"""Bytes set aside for tokenizer and configuration (chosen; SmolLM2's are 3.5 MB)."""


def main(source: Path, target: Path) -> int:
    """Convert `source` into `target`, an empty folder. Returns the exit status."""
    try:
        _check_room(source, target)
        _convert(source, target)
    except Exception as error:  # noqa: BLE001 - readers and writers fail in many ways: damaged file, full disk, no memory
        print(_in_words(error, target), file=sys.stderr)
        return 1
    return 0


def _check_room(source: Path, target: Path) -> None:
    from gguf import GGUFReader

    needed = BESIDE_WEIGHTS + 2 * sum(int(tensor.n_elements) for tensor in GGUFReader(source).tensors)
    free = shutil.disk_usage(target).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB needed")


def _convert(source: Path, target: Path) -> None:
    print("loading the libraries", flush=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print("reading the weights", flush=True)
    # bfloat16: what the published checkpoint has, and half the bytes of float32.
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The weights are plain now, but the reader marks them as quantized, and so they would be saved.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    print("writing safetensors", flush=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _in_words(error: Exception, target: Path) -> str:
    text = " ".join(str(error).split())
    # safetensors reports a full disk in its own exception, by text only.
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in text:
        return f"no space left in {target.parent} ({text}); free some or set APPLIANCE_MODELS_DIR to another volume"
    return f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
