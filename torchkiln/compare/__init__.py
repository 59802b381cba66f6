"""Compares two images by packages, settings and layers."""
