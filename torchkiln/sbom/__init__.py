"""Writes the software bill of materials of an image as SPDX and CycloneDX.

The bill is made of the lock and of what the layers say about their packages.
"""
