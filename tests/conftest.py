"""Puts this folder on the import path: tests in its subfolders share `requirement`."""
