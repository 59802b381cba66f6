"""Packs an image, its smoke tests and what they need into one file for another machine.

The other machine needs a Python and no network.
"""
