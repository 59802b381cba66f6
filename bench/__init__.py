"""Benchmarks: both sides in one run, the same bytes, alternating, as ratios."""
