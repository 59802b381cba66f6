"""Compares two images by files or by layers and two locks by packages, and finds shared layers."""
