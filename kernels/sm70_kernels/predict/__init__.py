"""The predicting model: what a kernel would take on a V100-SXM2, from its machine code. `MODEL.md` explains it.

machine/     a kernel's machine code: disassembly, control words, pipes, control flow
emulate/     which instructions its warps issue, and what their memory accesses touch
simulate/    how long an SM takes for that
prediction   one launch; `library` one product of cuBLAS
step         the launches of a step; `parts` the whole step, with bounds where there is no kernel yet
"""
