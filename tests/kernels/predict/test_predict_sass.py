"""Control words and operands, on encodings that nvdisasm 12.8 printed for sm_70."""

from __future__ import annotations

import pytest

from sm70_kernels.errors import KernelError
from sm70_kernels.predict.machine import sass
from sm70_kernels.predict.machine.control import Control, decode
from sm70_kernels.predict.machine.sass import Operand, parse
from tests.kernels.predict.counted_kernels import FFMA, compiled

pytestmark = pytest.mark.needs("engine")

LISTING = """
	.section	.text.k,"ax",@progbits
.text.k:
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;       /* 0x00000a00ff017624 */
                                                                                 /* 0x000fe400078e00ff */
        /*0010*/              @!PT SHFL.IDX PT, RZ, RZ, RZ, RZ ;                 /* 0x000000fffffff389 */
                                                                                 /* 0x000fe200000e00ff */
        /*0020*/                   S2R R14, SR_TID.X ;                           /* 0x00000000000e7919 */
                                                                                 /* 0x000e220000002100 */
.L_x_0:
        /*0030*/                   LOP3.LUT R2, R14.reuse, 0x10, ~RZ, 0xc0, !PT ;  /* 0x000000100e027812 */
                                                                                 /* 0x041fe200078ec0ff */
        /*0040*/                   LDG.E.128.CONSTANT.SYS R16, [R2+-0x10] ;      /* 0x0000000002007381 */
                                                                                 /* 0x0000a800001e6500 */
        /*0050*/              @!P0 BRA `(.L_x_0) ;                               /* 0xfffffff000008947 */
                                                                                 /* 0x000fca000383ffff */
	.section	.text.other,"ax",@progbits
.text.other:
        /*0000*/                   EXIT ;                                        /* 0x000000000000794d */
                                                                                 /* 0x000fea0003800000 */
"""


@pytest.mark.parametrize(
    ("upper", "control"),
    [
        # MOV: two cycles, then on.
        (0x000FE400078E00FF, Control(2, False, None, None, (), 0)),
        # S2R sets barrier 0 when its result is there.
        (0x000E220000002100, Control(1, False, 0, None, (), 0)),
        # LOP3 waits for barrier 0, and keeps its first source in the reuse cache; another waits for none.
        (0x041FE200078EC0FF, Control(1, False, None, None, (0,), 1)),
        (0x100FE400078EF80E, Control(2, False, None, None, (), 4)),
        # IMAD.WIDE with a cleared bit yields, for four cycles.
        (0x000FC800078E0205, Control(4, True, None, None, (), 0)),
        # LDG sets barrier 2.
        (0x0000A800001E6500, Control(4, False, 2, 0, (), 0)),
        # PRMT waits for barrier 2.
        (0x004FE40000000009, Control(2, False, None, None, (2,), 0)),
    ],
)
def test_control_words_are_decoded(upper: int, control: Control) -> None:
    assert decode(upper) == control


def test_a_listing_is_parsed_for_one_kernel_alone() -> None:
    program = parse(LISTING, "k")
    assert [each.base for each in program.instructions] == ["IMAD", "SHFL", "S2R", "LOP3", "LDG", "BRA"]
    move, never, _, logic, load, branch = program.instructions
    assert never.never
    assert not branch.never
    assert move.operands[3] == Operand("constant", 0, 0x28, text="c[0x0][0x28]")
    assert logic.operands[1] == Operand("register", 14, text="R14.reuse")
    assert logic.operands[3] == Operand("register", None, inverted=True, text="~RZ")
    assert logic.operands[5] == Operand("predicate", None, inverted=True, text="!PT")
    assert load.modifiers == ("E", "128", "CONSTANT", "SYS")
    assert load.operands[1] == Operand("address", 2, -16, text="[R2+-0x10]")
    assert branch.guard == Operand("predicate", 0, inverted=True, text="!P0")
    assert branch.target == 0x30


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("-R5", Operand("register", 5, negative=True)),
        ("|R29|", Operand("register", 29, absolute=True)),
        ("-0x1", Operand("immediate", value=-1)),
        ("1.5", Operand("immediate", value=1.5)),
        ("-c[0x0][0x170]", Operand("constant", 0, 0x170, negative=True)),
        ("c[0x3][R4+0x8]", Operand("other", 3, 8)),
        ("[R4.X4+0x80]", Operand("address", 4, 0x80, 4)),
        ("[RZ]", Operand("address")),
        ("[0x20]", Operand("address", None, 0x20)),
        ("+INF", Operand("immediate", value=float("inf"))),
        ("SR_TID.X", Operand("other")),
    ],
)
def test_operands_are_parsed(text: str, operand: Operand) -> None:
    listing = LISTING.replace("R16, [R2+-0x10]", f"R16, {text}")
    found = parse(listing, "k").instructions[4].operands[1]
    assert (found.kind, found.index, found.value, found.scale) == (
        operand.kind,
        operand.index,
        operand.value,
        operand.scale,
    )
    assert (found.negative, found.inverted, found.absolute) == (operand.negative, operand.inverted, operand.absolute)


def test_a_cubin_gives_code_and_registers() -> None:
    code, _ = compiled(FFMA, "Pffi", 128, CHAINS=1)
    assert 8 <= code.registers <= 32
    assert code.static_shared == 0
    assert any(each.base == "FFMA" for each in code.program.instructions)


def test_what_cannot_be_disassembled_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="the cubin holds no code of other_kernel"):
        parse(LISTING, "other_kernel")
    with pytest.raises(KernelError, match="refuses k: ") as caught:
        sass.disassemble(b"not a cubin", "k")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("NVDISASM", "/nowhere/nvdisasm")
    with pytest.raises(KernelError, match="/nowhere/nvdisasm cannot be run"):
        sass.disassemble(b"another", "k")
