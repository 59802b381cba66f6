"""Compares two images by files or by layers."""
