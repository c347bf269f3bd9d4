"""Benchmarks of our own code that need the whole repository; `make bench` has those of the control plane."""
