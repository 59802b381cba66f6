"""Compares images, locks and layers with each other.

Files of two images, layers of two images, wheels of two locks, and the layers that several images share.
"""
