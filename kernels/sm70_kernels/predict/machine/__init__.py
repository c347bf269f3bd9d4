"""A kernel's machine code: disassembly, control words, pipes, control flow. Knows no time and no data."""
