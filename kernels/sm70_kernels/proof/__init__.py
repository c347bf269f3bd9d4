"""Prove an operator on a device: against float64, bit for bit again, with poisoned and guarded results."""
