"""Reads and writes OCI images: tar, gzip, zstd, layers, manifests, layouts and archives.

Reading is strict: input that two programs could interpret differently is refused.
"""
