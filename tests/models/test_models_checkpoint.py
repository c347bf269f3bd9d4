"""Reading a checkpoint folder: its kind by its own configuration, and every way in which it can be incomplete."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from appliance.errors import CheckError, ConfigurationError
from appliance.models.checkpoint import inspect

if TYPE_CHECKING:
    from pathlib import Path

QWEN = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}


def safetensors(path: Path, tensors: int = 1, size: int = 64) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for at in range(tensors):
        header[f"t{at}"] = {"dtype": "U8", "shape": [size], "data_offsets": [at * size, (at + 1) * size]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(tensors * size))


def checkpoint(folder: Path, quantization: dict[str, Any] | None = None, shards: int = 2) -> Path:
    folder.mkdir(exist_ok=True)
    config = {**QWEN, "quantization_config": quantization} if quantization else QWEN
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = [f"model-{at:05d}-of-{shards:05d}.safetensors" for at in range(1, shards + 1)]
    for name in names:
        safetensors(folder / name)
    index = {"metadata": {}, "weight_map": {f"t{at}": name for at, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def group(format_: str, **weights: object) -> dict[str, Any]:
    return {"format": format_, "targets": ["Linear"], "weights": weights}


NVFP4_GROUP = group("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)
FP8_CHANNEL = group("float-quantized", num_bits=8, type="float", strategy="channel")
FP8_BLOCK = group("float-quantized", num_bits=8, type="float", strategy="block")
INT4 = group("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32)


def compressed(*groups: dict[str, Any], **more: object) -> dict[str, Any]:
    named = {f"group_{at}": value for at, value in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, **more}


@pytest.mark.parametrize(
    ("quantization", "kind"),
    [
        (None, "unquantized"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "other"),
        (compressed(NVFP4_GROUP), "nvfp4"),
        (compressed({"weights": NVFP4_GROUP["weights"]}, format="nvfp4-pack-quantized"), "nvfp4"),
        (compressed(NVFP4_GROUP, FP8_CHANNEL, format="mixed-precision"), "mixed"),
        (compressed(FP8_CHANNEL), "fp8_channel"),
        (compressed(FP8_BLOCK), "fp8_block"),
        (compressed(INT4), "other"),
        (compressed(), "other"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt_fp4"}, "nvfp4"),
        ({"quant_method": "modelopt_mixed"}, "mixed"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "mixed"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "other"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "bitsandbytes"}, "other"),
    ],
)
def test_kind_is_what_the_configuration_says(tmp_path: Path, quantization: dict[str, Any] | None, kind: str) -> None:
    found = inspect(checkpoint(tmp_path / "m", quantization))
    assert found.kind == kind
    assert found.architecture == "Qwen3_5ForConditionalGeneration"
    assert found.scheme


def test_modelopts_own_file_counts_where_the_configuration_is_silent(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    record = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (folder / "hf_quant_config.json").write_text(json.dumps(record), encoding="utf-8")
    assert inspect(folder).kind == "nvfp4"


def test_quantisation_of_the_text_model_counts(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    nested = {**QWEN, "text_config": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}}
    (folder / "config.json").write_text(json.dumps(nested), encoding="utf-8")
    assert inspect(folder).kind == "fp8_block"


def test_bytes_and_files_are_those_of_the_weights(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", shards=3)
    found = inspect(folder)
    assert len(found.files) == 3
    assert found.bytes == sum((folder / name).stat().st_size for name in found.files)


def test_one_file_needs_no_index(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN), encoding="utf-8")
    safetensors(folder / "model.safetensors", tensors=3)
    assert inspect(folder).files == ("model.safetensors",)


def test_a_link_into_a_cache_is_followed_and_a_dead_one_is_missing(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    shard = folder / "model-00001-of-00002.safetensors"
    blob = tmp_path / "blob"
    shard.rename(blob)
    shard.symlink_to(blob)
    assert inspect(folder).bytes
    blob.unlink()
    with pytest.raises(CheckError, match=r"1 of 2 weight files are missing \(model-00001-of-00002"):
        inspect(folder)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", shards=6)
    for at in (2, 3, 4, 6):
        (folder / f"model-{at:05d}-of-00006.safetensors").unlink()
    with pytest.raises(CheckError) as error:
        inspect(folder)
    assert str(error.value) == (
        f"{folder}: half downloaded, 4 of 6 weight files are missing (model-00002-of-00006.safetensors, "
        "model-00003-of-00006.safetensors, model-00004-of-00006.safetensors and 1 more); finish the download"
    )


def test_shards_count_themselves_where_the_index_is_missing(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", shards=3)
    (folder / "model.safetensors.index.json").unlink()
    assert len(inspect(folder).files) == 3
    (folder / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(CheckError, match=r"missing \(model-00003-of-00003\.safetensors\)"):
        inspect(folder)


@pytest.mark.parametrize(
    "left",
    [
        "model-00001-of-00002.safetensors.aria2",
        "tokenizer.json.incomplete",
        ".cache/huggingface/download/abc.incomplete",
    ],
)
def test_what_a_download_left_is_named(tmp_path: Path, left: str) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / left).parent.mkdir(parents=True, exist_ok=True)
    (folder / left).touch()
    with pytest.raises(CheckError) as error:
        inspect(folder)
    assert f"a download is not finished ({left})" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; download it again"),
        (b"\x10", "is cut short or no safetensors file (1 bytes)"),
        (b"\xff" * 64, "is cut short or no safetensors file (64 bytes)"),
        (struct.pack("<Q", 4) + b"[{}]", "is cut short or no safetensors file"),
        (struct.pack("<Q", 12) + b'{"a":{"b":1}', "is cut short or no safetensors file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5000000000\n",
            "is a Git LFS pointer and not the file itself; run `git lfs pull` there",
        ),
    ],
)
def test_a_broken_shard_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    folder = checkpoint(tmp_path / "m")
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(content)
    with pytest.raises(CheckError) as error:
        inspect(folder)
    assert str(error.value).startswith(f"{shard}: ")
    assert message in str(error.value)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_shard_of_the_wrong_size_is_named(tmp_path: Path, change: int) -> None:
    folder = checkpoint(tmp_path / "m")
    shard = folder / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] if change < 0 else content + b"x")
    with pytest.raises(CheckError, match=rf"has {len(content) + change} bytes and its header says {len(content)}"):
        inspect(folder)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist; wanted the folder of a checkpoint"):
        inspect(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="is a file; wanted the folder"):
        inspect(tmp_path / "file")
    with pytest.raises(ConfigurationError, match=r"has no config\.json"):
        inspect(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckError, match=r"config\.json: not JSON; download it again"):
        inspect(tmp_path)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CheckError, match="holds no JSON object"):
        inspect(tmp_path)
    (tmp_path / "config.json").write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
    with pytest.raises(CheckError, match="is a Git LFS pointer"):
        inspect(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(QWEN), encoding="utf-8")
    with pytest.raises(CheckError, match=r"holds no \*\.safetensors file"):
        inspect(tmp_path)


def test_an_index_without_a_map(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckError, match="has no weight_map"):
        inspect(folder)
