"""Predicted steps and prompts, by hand count, on a machine of round figures and kernels that take known times."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

import pytest

from appliance.bench import predict, predict_data, predict_published, reference
from appliance.bench.predict_subject import Subject, subject, workload
from appliance.errors import ConfigurationError
from appliance.profiles import catalogue
from sm70_kernels import qwen38
from sm70_kernels.predict import parts as predict_parts
from sm70_kernels.predict.parts import (
    BOUND,
    GAP,
    KERNEL,
    LIBRARY,
    Basis,
    Kernels,
    Machine,
    Part,
    Row,
    Shape,
    chunk_shape,
    decode_shape,
)

if TYPE_CHECKING:
    from appliance.profiles.schema import Profile

MACHINE = Machine(dram_bandwidth=800, products_a_us=5e7, start=1.0, gap=0.5)
"""800,000 bytes a microsecond."""

ROWS = (
    Row("gate_up", "dense", 64, 100.0, 90.0, machine_code=True),
    Row("down", "dense", 64, 50.0, 40.0, machine_code=True),
    Row("add_rms_norm", "norm", 129, 2.0, 0.1, machine_code=True),
    Row("lm_head", "head", 1, 1000.0, 800.0, machine_code=False),
    Row("gdn_ba", "head", 48, 2.0, 0.3, machine_code=False),
)
KERNELS = Kernels(ROWS, MACHINE)


def about(name: str = "qwen38_27b_fp8_c32") -> Subject:
    return subject(catalogue.load(name))


def part(parts: tuple[Part, ...] | list[Part], name: str) -> Part:
    (found,) = (each for each in parts if each.name == name)
    return found


def near(name: str, basis: Basis, launches: int, ms: float, rel: float | None = None) -> Part:
    """A part to compare with, whose milliseconds need only be near."""
    return Part(name, basis, launches, cast("float", pytest.approx(ms, rel=rel)))


def bounds(subject: Subject, shape: Shape) -> list[Part]:
    return list(predict_parts.bounds(workload(subject), shape, MACHINE))


def test_kernels_are_summed_by_family_and_marked_by_where_they_come_from() -> None:
    found = list(predict_parts.of_kernels(KERNELS, decode_shape(1024, 1, 0)))
    assert part(found, "dense") == near("dense", KERNEL, 128, 9.6)
    assert part(found, "norm") == near("norm", KERNEL, 129, 0.258)
    assert part(found, "head") == near("head", LIBRARY, 1, 1.0)
    assert part(found, "gdn_ba") == near("gdn_ba", LIBRARY, 48, 0.096)
    quiet = chunk_shape(0, 8192, last=False)
    assert "head" not in {each.name for each in predict_parts.of_kernels(KERNELS, quiet)}


def test_the_recurrence_is_its_kernels_where_each_request_has_one_row() -> None:
    steps = Row("gdn_decode", "gdn", 48, 60.0, 58.0, machine_code=True)
    kernels = Kernels((*ROWS, steps), MACHINE)
    step = predict_parts.decode_step(workload(about()), decode_shape(2048, 32, 0), kernels)
    assert part(step, "recurrence") == near("recurrence", KERNEL, 48, 2.88)
    for shape in (decode_shape(2048, 4, 7), chunk_shape(0, 8192, last=True)):
        assert part(predict_parts.prefill_chunk(workload(about()), shape, kernels), "recurrence").basis == BOUND


def test_a_product_of_a_dense_layer_is_told_apart_from_our_kernels() -> None:
    expanded = (
        Row("down expand", "dense", 64, 80.0, 79.0, machine_code=True),
        Row("down product", "dense", 64, 4000.0, 3000.0, machine_code=False),
    )
    found = list(predict_parts.of_kernels(Kernels(expanded, MACHINE), decode_shape(1024, 1, 0)))
    assert part(found, "dense") == near("dense", KERNEL, 64, 5.12)
    assert part(found, "dense_library") == near("dense_library", LIBRARY, 64, 256.0)


def test_attention_reads_the_cache_once() -> None:
    # A rank of four has one KV head of 256: K and V in FP16 are 1024 bytes a token; 131072 tokens are 134 MB
    # (docs/volta.md, "Rates and floors"), 167.77 us at 800 GB/s, and a microsecond to start; 16 layers.
    found = part(bounds(about(), decode_shape(131072, 1, 0)), "attention")
    assert found == near("attention", BOUND, 16, 16 * 168.772 / 1e3, rel=1e-5)


def test_an_8_bit_cache_takes_half() -> None:
    found = part(bounds(about("qwen38_27b_fp8_32k"), decode_shape(16384, 4, 0)), "attention")
    # Four requests: 4 * 16384 * 512 bytes.
    assert found.ms == pytest.approx(16 * (1 + 33_554_432 / 800e3) / 1e3)


def test_two_ranks_have_two_heads_each() -> None:
    found = part(bounds(about("qwen38_27b_fp8_tp2"), decode_shape(4096, 1, 0)), "attention")
    assert found.ms == pytest.approx(16 * (1 + 4096 * 1024 / 800e3) / 1e3)


def test_a_prompts_attention_takes_its_products() -> None:
    shape = chunk_shape(8192, 4096, last=True)
    # Each of 4096 queries sees the 8192 before and itself and its predecessors.
    assert shape.attended == 4096 * 8192 + 4096 * 4097 // 2
    # Six query heads of 256, a product with keys and one with values.
    products = 2 * 6 * 256 * 41_945_088
    assert part(bounds(about(), shape), "attention").ms == pytest.approx(16 * (1 + products / 5e7) / 1e3)
    # All chunks of a prompt attend as often as one chunk of all would.
    whole = chunk_shape(0, 8192 + 4096, last=True)
    assert chunk_shape(0, 8192, last=False).attended + shape.attended == whole.attended


def test_the_recurrence_reads_and_writes_each_state() -> None:
    # 12 heads of 128 x 128 in FP32, and three columns of 2560 convolution channels in FP16; the row: 4096 in and out.
    state = 12 * 128 * 128 * 4 + 2560 * 3 * 2
    assert state == 801_792
    us = 1 + (2 * 32 * state + 32 * 2 * (2560 + 1536)) / 800e3
    found = part(bounds(about(), decode_shape(2048, 32, 0)), "recurrence")
    assert found == near("recurrence", BOUND, 48, 48 * us / 1e3)


def test_collectives_take_their_latency_and_their_bytes() -> None:
    # 128 sums of a row of 10240 bytes, of which a rank sends 1.5 times as much at 150 GB/s: 0.1024 us; and the logits:
    # three quarters of 248320 halves, 2.4832 us.
    found = part(bounds(about(), decode_shape(1024, 1, 0)), "collectives")
    assert found == near("collectives", BOUND, 129, (128 * 3.1024 + 3 + 2.4832) / 1e3)
    # A chunk that is not a prompt's last wants no logits.
    chunk = part(bounds(about(), chunk_shape(0, 8192, last=False)), "collectives")
    assert chunk == near("collectives", BOUND, 128, 128 * (3 + 8192 * 0.1024) / 1e3)
    # Two ranks send as much as they have, at 50 GB/s.
    two = part(bounds(about("qwen38_27b_fp8_tp2"), decode_shape(1024, 1, 0)), "collectives")
    assert two.ms == pytest.approx((128 * (3 + 10240 / 50e3) + 3 + 248320 / 50e3) / 1e3)


def test_one_rank_has_no_collectives() -> None:
    alone = dataclasses.replace(about(), ranks=1)
    assert {each.name for each in bounds(alone, decode_shape(1024, 1, 0))} == {"attention", "recurrence"}


def test_dense_weights_are_counted_whole() -> None:
    # docs/volta.md, "Rates and floors": 24.33 G parameters; and 48 layers' b and a, 96 columns of 5120.
    assert qwen38.dense_weights() == 24_326_963_200 + 48 * 96 * 5120


def test_nvfp4_layers_are_bounded_by_bytes_then_by_products() -> None:
    nvfp4 = about("qwen38_27b_nvfp4_dflash2")
    weights = 24_326_963_200 + 48 * 96 * 5120
    # docs/volta.md, "Rates and floors": 3.42 GB of all at 4.5 bits on a rank, 4.28 ms at 800 GB/s; 256 starts.
    few = part(bounds(nvfp4, decode_shape(1024, 1, 7)), "dense")
    assert few == near("dense", BOUND, 256, 0.256 + weights / 4 * 0.5625 / 800e6)
    assert few.ms == pytest.approx(4.28 + 0.256, abs=0.01)
    many = part(bounds(nvfp4, chunk_shape(0, 4096, last=True)), "dense")
    assert many.ms == pytest.approx(0.256 + weights / 4 * 4096 / 5e10)


def test_fp8_layers_are_not_bounded_but_told_by_their_kernels() -> None:
    assert "dense" not in {each.name for each in bounds(about(), decode_shape(1024, 1, 0))}


def test_a_draft_reads_its_weights_and_its_window() -> None:
    model, head = workload(about("qwen38_27b_nvfp4_dflash2")).draft, Part("head", LIBRARY, 1, 1.0)
    assert model is not None
    found = list(predict_parts.draft(model, decode_shape(262144, 2, 7), MACHINE, head))
    # 1.17 GiB less the two codebooks; 2048 tokens of two KV heads of 128 in FP16, five layers, two requests.
    moved = 1.17 * 2**30 - 2 * 248320 * 256 * 2 + 5 * 2 * 2048 * 1024
    assert part(found, "draft") == near("draft", BOUND, 5, (5 + moved / 800e3) / 1e3)
    assert part(found, "draft_head") == Part("draft_head", LIBRARY, 1, 1.0)


def test_a_step_is_the_sum_of_its_parts() -> None:
    asked = []

    def model(rows: int, logits: int) -> Kernels:
        asked.append((rows, logits))
        return KERNELS

    step = predict.decode(about(), 2048, 32, model)
    assert asked == [(32, 32)]
    assert step.rows == 32
    assert step.ms == pytest.approx(sum(each.ms for each in step.parts))
    # 128 dense, 129 norms, 49 of the library, 16 attention, 48 recurrence, 129 collectives; half a microsecond each.
    assert part(step.parts, "gaps") == near("gaps", GAP, 0, 499 * 0.5 / 1e3)
    assert step.tokens_per_s(1) == pytest.approx(32e3 / step.ms)
    (published,) = step.published
    assert published.step_ms == 29.502
    assert sum(published.parts.values()) < published.step_ms


def test_a_round_with_a_draft_checks_eight_rows_a_request() -> None:
    asked = []

    def model(rows: int, logits: int) -> Kernels:
        asked.append((rows, logits))
        return Kernels(ROWS[2:4], MACHINE)

    step = predict.decode(about("qwen38_27b_nvfp4_dflash2"), 1024, 4, model)
    assert asked == [(32, 32)]
    assert step.published == ()
    assert step.tokens_per_s(3.6) == pytest.approx(4e3 * 3.6 / step.ms)
    assert part(step.parts, "draft_head").ms == part(step.parts, "head").ms


def test_a_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    asked = []

    def model(rows: int, logits: int) -> Kernels:
        asked.append((rows, logits))
        return KERNELS

    prompt = predict.prefill(about(), 20000, model)
    assert asked == [(8192, 1), (8192, 1), (3616, 1)]
    assert prompt.chunks == 3
    # Norms in each chunk, the output head after the last token alone.
    assert part(prompt.parts, "norm") == near("norm", KERNEL, 3 * 129, 3 * 0.258)
    assert part(prompt.parts, "head") == near("head", LIBRARY, 1, 1.0)
    assert part(prompt.parts, "collectives").launches == 3 * 128 + 1
    assert prompt.tokens_per_s == pytest.approx(20000e3 / prompt.ms)


def test_the_model_is_asked_once_for_each_number_of_rows() -> None:
    nvfp4 = about("qwen38_27b_nvfp4_dflash2")
    wanted = predict.rows_wanted(nvfp4, (4096, 8192, 9000), (1, 4))
    assert wanted == [(8, 8), (32, 32), (4096, 1), (808, 1)]


def test_what_is_predicted_for_is_what_the_profile_allows() -> None:
    c32 = about()
    # Contexts whose steps others measured join in, and not where prompts are asked for.
    assert predict.contexts(c32, None) == (1024, 2048, 4096, 8192, 16384, 32768)
    assert predict.contexts(c32, None, prompts=True) == (1024, 4096, 16384, 32768)
    assert predict.contexts(about("qwen38_27b_fp8_tp2"), None)[-1] == 262144
    assert predict.concurrencies(about("qwen38_27b_nvfp4_dflash2"), None) == (1, 2, 4)
    assert predict.contexts(c32, [33024, 1, 33024]) == (33024, 1)


@pytest.mark.parametrize(
    ("which", "asked", "says"),
    [
        (predict.contexts, [33025], "--context 33025: qwen38_27b_fp8_c32's max_model_len is 33024; ask for 1 to 33024"),
        (predict.concurrencies, [1, 33], "--concurrency 33: qwen38_27b_fp8_c32's max_num_seqs is 32; ask for 1 to 32"),
    ],
)
def test_more_than_the_profile_allows_is_refused(which: object, asked: list[int], says: str) -> None:
    assert callable(which)
    with pytest.raises(ConfigurationError) as caught:
        which(about(), asked)
    assert str(caught.value) == says


def test_a_profile_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="serves LlamaForCausalLM on portable; predictions are of Qwen3_5"):
        about("portable_smollm2")
    c32 = catalogue.load("qwen38_27b_fp8_c32")
    awq = c32.model_copy(update={"model": c32.model.model_copy(update={"kind": "awq"})})
    with pytest.raises(ConfigurationError, match="has weights of kind awq; predictions know fp8_block and nvfp4"):
        subject(awq)
    vague = c32.model_copy(update={"arguments": {**c32.arguments, "max_num_batched_tokens": "auto"}})
    with pytest.raises(ConfigurationError, match=r"arguments\.max_num_batched_tokens is 'auto'; a prediction"):
        subject(vague)


@pytest.mark.parametrize(
    "profile", [each for each in catalogue.load_all() if each.engine == "v100"], ids=lambda p: p.name
)
def test_a_profile_has_the_checkpoints_shapes(profile: Profile) -> None:
    geometry = profile.memory.geometry
    assert qwen38.ARCHITECTURE in profile.architectures
    assert (geometry.layers_full_attention, geometry.layers_linear_attention) == (
        qwen38.ATTENTION_LAYERS,
        qwen38.GDN_LAYERS,
    )
    assert (geometry.kv_heads, geometry.head_dim) == (qwen38.KEY_HEADS, qwen38.HEAD)
    assert (geometry.linear_value_heads, geometry.linear_key_heads) == (qwen38.GDN_HEADS, qwen38.GDN_KEY_HEADS)
    assert (geometry.linear_head_dim, geometry.linear_conv_width) == (qwen38.GDN_HEAD, qwen38.CONV_WIDTH)
    longest = profile.arguments["max_model_len"]
    assert isinstance(longest, int)
    assert longest <= qwen38.POSITIONS


def test_every_figure_has_a_source() -> None:
    data = predict_data.load()
    for figure in (data.peer_bandwidth, data.collective_latency, data.nvfp4_weight, data.draft_gathered):
        assert figure.source


def test_published_steps_are_those_of_the_same_weights_cache_ranks_and_speculation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {each.name: each for each in predict_published.of(about())}
    assert {"v100_fp8_c1_1k", "v100_fp8_c16_1k", "v100_decode_2k"} <= set(found)
    # Another card, another cache, a whole serving load, and a run of which nobody said that nothing was drafted.
    others = {"a800_decode_2k", "v100_sglang_fp8_c1_4k", "v100_serve_32k_before", "v100_decode_2k_before"}
    assert others <= set(reference.load_all())
    assert not others & set(found)
    step, rate = found["v100_decode_2k"], found["v100_fp8_c1_1k"]
    assert (step.context, step.concurrency, step.step_ms, step.told) == (2048, 32, 29.502, "mean step")
    assert step.parts["dense"] == 14.924
    # 65.1 tokens a second of one request.
    assert rate.step_ms == pytest.approx(15.361, abs=1e-3)
    assert (rate.told, rate.prefill_tokens_per_s) == ("65.1 tokens/s", 2515)
    assert found["v100_fp8_c16_1k"].step_ms == 23.0
    assert predict_published.of(about("qwen38_27b_fp8_tp2")) == ()
    ours = {"mine": reference.load("v100_decode_2k").model_copy(update={"provenance": "measured"})}
    monkeypatch.setattr(reference, "load_all", lambda: ours)
    assert predict_published.of(about()) == (), "what we measured is not published"
    monkeypatch.undo()
    eight_bit = {each.name for each in predict_published.of(about("qwen38_27b_fp8_32k"))}
    assert "v100_sglang_fp8_c1_4k" in eight_bit


def test_of_a_draft_only_a_rounds_own_time_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    known = reference.load_all()
    web = known["v100_dflash2_c1_web"]
    contract = web.contract.model_copy(
        update={
            "workload": web.contract.workload.model_copy(update={"input_tokens": 1024}),
            "system": web.contract.system.model_copy(update={"quantization": "nvfp4"}),
        }
    )
    mine = {"told": web.model_copy(update={"contract": contract})}
    mine["untold"] = mine["told"].model_copy(update={"figures": {}})
    monkeypatch.setattr(reference, "load_all", lambda: mine)
    (found,) = predict_published.of(about("qwen38_27b_nvfp4_dflash2"))
    assert (found.step_ms, found.told) == (17.46, "round")
