"""The pinned torch has what launches and the GPU suite ask of torch beyond its documented interface."""

from __future__ import annotations

import torch
import torch.cuda

INTERNALS = ("_cuda_getDevice", "_cuda_getCurrentRawStream", "_StaticCudaLauncher", "parse_schema")
"""Of torch._C."""
SETTINGS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction_split_k",
    "allow_fp16_accumulation",
)


def test_what_a_launch_calls_is_there() -> None:
    missing = [name for name in INTERNALS if not hasattr(torch._C, name)]
    # A build without CUDA has no calls of CUDA's; one with it has all.
    if torch.version.cuda is None:
        missing = [name for name in missing if "uda" not in name]
    assert missing == []
    if torch.version.cuda is not None:
        assert hasattr(torch._C._StaticCudaLauncher, "_launch_kernel")


def test_products_may_keep_fp32_sums_of_fp16_numbers() -> None:
    assert "dtype" in torch.ops.aten.mm.overloads()
    settings = torch.backends.cuda.matmul
    assert all(isinstance(getattr(settings, name), bool) for name in SETTINGS)


def test_the_suite_finds_what_it_calls_of_cuda() -> None:
    for name in ("CUDAGraph", "graph", "Stream", "Event", "is_current_stream_capturing", "_sleep"):
        assert hasattr(torch.cuda, name), name
