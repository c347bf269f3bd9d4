"""A paged KV cache for the tests, filled by hand, and attention over it by its definition in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from sm70_kernels.attention.pack import pack

FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass(frozen=True)
class Sizes:
    page_size: int = 16
    kv_heads: int = 2
    group: int = 3
    head: int = 32
    dtype: torch.dtype = torch.float16
    kv_dtype: str = "auto"

    @property
    def storage(self) -> torch.dtype:
        return self.dtype if self.kv_dtype == "auto" else torch.uint8


@dataclass
class PagedCache:
    """Sequences of `lengths` tokens in shuffled pages. What no sequence uses is NaN: the rest of the last pages, whole
    pages, the gaps between pages; the block table's unused entries point anywhere.
    """

    sizes: Sizes
    lengths: tuple[int, ...]
    seed: int = 0
    spare_pages: int = 3
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    """Of each sequence [tokens, Hkv, D] in float64, as the cache stores them, scales applied."""

    def __post_init__(self) -> None:
        sizes, self.generator = self.sizes, torch.Generator().manual_seed(self.seed)
        self.k_scale, self.v_scale = torch.tensor([0.5]), torch.tensor([1.75])
        needed = [-(-length // sizes.page_size) for length in self.lengths]
        pages = sum(needed) + self.spare_pages
        shape = (pages, 2, sizes.page_size, sizes.kv_heads, sizes.head)
        self.pool = torch.full((pages, 3, *shape[2:]), 0xFF, dtype=torch.uint8)
        if sizes.kv_dtype == "auto":
            self.pool = torch.full((pages, 3, *shape[2:]), torch.nan, dtype=sizes.dtype)
        self.kv_cache = self.pool[:, :2]
        order = torch.randperm(pages, generator=self.generator).tolist()
        self.block_table = torch.full((len(self.lengths), max(needed, default=1) + 2), 2**31 - 1, dtype=torch.int32)
        self.block_table[:, -1] = -7
        for number, (length, count) in enumerate(zip(self.lengths, needed, strict=True)):
            mine, order = order[:count], order[count:]
            self.block_table[number, :count] = integers(*mine)
            for half, kept, scale in ((0, self.keys, self.k_scale), (1, self.values, self.v_scale)):
                rows = self.normal(length, sizes.kv_heads, sizes.head)
                stored, exact = self._stored(rows, scale)
                for position in range(length):
                    page, offset = mine[position // sizes.page_size], position % sizes.page_size
                    self.kv_cache[page, half, offset] = stored[position]
                kept.append(exact)
        self.seq_lens = integers(*self.lengths)

    def _stored(self, rows: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.sizes.kv_dtype == "auto":
            return rows, rows.double()
        codes = (rows.float() / scale).to(FP8[self.sizes.kv_dtype])
        return codes.view(torch.uint8), codes.double() * scale.double()

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.sizes.dtype)

    def query(self, tokens: int) -> torch.Tensor:
        return self.normal(tokens, self.sizes.kv_heads * self.sizes.group, self.sizes.head)

    def attend(self, operator: str, query: torch.Tensor, starts: torch.Tensor, out: torch.Tensor) -> None:
        """Run `attention_decode` or `attention_prefill` with a softmax scale of 0.25."""
        where = (self.kv_cache, self.block_table, self.seq_lens, starts, out)
        getattr(torch.ops.sm70, operator)(query, *where, 0.25, self.sizes.kv_dtype, self.k_scale, self.v_scale)

    def exact(self, query: torch.Tensor, number: int) -> torch.Tensor:
        """Return attention of the rows `query` [rows, Hq, D], the last of sequence `number`, in float64."""
        rows, length = query.shape[0], self.lengths[number]
        result = torch.zeros_like(query, dtype=torch.float64)
        for row in range(rows):
            visible = length - rows + row + 1
            for head in range(query.shape[1]):
                kv_head = head // self.sizes.group
                scores = self.keys[number][:visible, kv_head] @ query[row, head].double() * 0.25
                result[row, head] = scores.softmax(0) @ self.values[number][:visible, kv_head]
        return result


def relative(seen: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(seen.double() - wanted.double()) / torch.linalg.vector_norm(wanted.double()))


def packed_pool(cache: PagedCache) -> torch.Tensor:
    """Return the cache in the order of a GPU, its pages still apart."""
    pool = cache.pool.clone()
    pool[:, :2] = pack(cache.kv_cache)
    return pool[:, :2]
