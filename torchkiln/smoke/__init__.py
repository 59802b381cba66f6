"""Runs the suite in `smoke_tests/` in an image and reports the results.

The host computes each verdict again from the measured values; it does not trust the image.
"""
