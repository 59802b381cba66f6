"""Writes an image's software bill of materials as CycloneDX; compares one with an image or a lock.

The bill combines the lock with the package metadata in the image.
"""
