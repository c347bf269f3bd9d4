"""The predicting model: what a kernel would take on a V100-SXM2, from its machine code. `MODEL.md` explains it.

machine/     a kernel's machine code: disassembly, control words, pipes, control flow
emulate/     which instructions its warps issue, and what their memory accesses touch
simulate/    how long an SM takes for that
prediction   one launch; `library` one product of cuBLAS
step         the launches of a step; `parts` the whole step, with bounds where no kernel is predicted

A family's `predict.py` describes its launches with `launch.Launch` and, for each pointer, `launch.Buffer`. Where trips
or addresses hang on integers in memory (lengths of sequences, query starts, block tables, slots, state indices), the
buffer is `launch.integers(values, width)`, and the emulated blocks load those values. Sequences of unequal lengths are
different blocks: `Launch.sample` names those to emulate.
"""
