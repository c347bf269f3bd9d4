"""Repacking of a checkpoint's weights, once at load, into the order in which a kernel's lanes read them."""
