"""Writes an image's software bill of materials as SPDX and CycloneDX; compares one with an image or a lock.

The bill combines the lock with the package metadata in the image.
"""
