"""Benchmarks against other tools, with the same inputs, in alternating rounds."""
