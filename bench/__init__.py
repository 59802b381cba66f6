"""Benchmarks of torchkiln and other tools, with the same inputs, in alternating rounds."""
