"""Pure tables: which specialisation serves which shape, and so what is built ahead of time. Imports no torch."""
