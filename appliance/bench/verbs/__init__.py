"""Verbs of `appliance bench`, a module each: `SUMMARY: str`, `configure(parser)` and `run(arguments) -> int`."""
