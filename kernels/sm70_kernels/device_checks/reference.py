"""The dequantisation identities of csrc/dequant as integer operations, beside the formats' own definitions."""

from __future__ import annotations

import torch

E4M3_FOLD = 2.0**8
E2M1_FOLD = 2.0**14


def e4m3_even(words: torch.Tensor) -> torch.Tensor:
    """Return bytes 0 and 2 of each word (int64 holding 32 bits) as two FP16 patterns in a word: value times 2^-8."""
    return (words << 8 & 0x80008000) | (words << 7 & 0x3F803F80)


def e4m3_odd(words: torch.Tensor) -> torch.Tensor:
    """Return bytes 1 and 3 likewise."""
    return (words & 0x80008000) | (words >> 1 & 0x3F803F80)


def e5m2_even(words: torch.Tensor) -> torch.Tensor:
    """Return bytes 0 and 2 of each word as two FP16 patterns in a word, exactly."""
    return words << 8 & 0xFF00FF00


def e5m2_odd(words: torch.Tensor) -> torch.Tensor:
    """Return bytes 1 and 3 likewise."""
    return words & 0xFF00FF00


def e2m1_pair(words: torch.Tensor, index: int) -> torch.Tensor:
    """Return nibbles `index` and `index + 4` (0 to 3) of each word as two FP16 patterns: value times 2^-14."""
    top = words << (12 - 4 * index)
    return (top & 0x80008000) | (top & 0x70007000) >> 3


def halves(words: torch.Tensor) -> torch.Tensor:
    """Return the low and the high FP16 of each word as float64 [..., 2]."""
    patterns = torch.stack((words & 0xFFFF, words >> 16 & 0xFFFF), dim=-1)
    return patterns.to(torch.uint16).view(torch.float16).double()


def decode(codes: torch.Tensor, exponent_bits: int, mantissa_bits: int, bias: int) -> torch.Tensor:
    """Return the float64 value of each code by a small float's definition, taking none for infinity or NaN."""
    exponent = codes >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = (codes & (1 << mantissa_bits) - 1).double() / (1 << mantissa_bits)
    sign = 1.0 - 2.0 * (codes >> exponent_bits + mantissa_bits & 1).double()
    # From bits: CUDA's FP64 pow(2, n) is one unit in the last place low at n = 11 and n = -4, among others.
    scale = (exponent.long().clamp(min=1) - bias + 1023 << 52).view(torch.float64)
    return sign * scale * (mantissa + (exponent > 0).double())


def e4m3(codes: torch.Tensor) -> torch.Tensor:
    """Return the value of each E4M3 code; 0x7F and 0xFF, not numbers, come out as ±480."""
    return decode(codes, 4, 3, 7)


def e5m2(codes: torch.Tensor) -> torch.Tensor:
    """Return the value of each E5M2 code that is finite."""
    return decode(codes, 5, 2, 15)


def e2m1(codes: torch.Tensor) -> torch.Tensor:
    """Return the value of each E2M1 code, the low nibble."""
    return decode(codes & 15, 2, 1, 1)
