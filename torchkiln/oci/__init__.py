"""Reads and writes OCI images: tar, gzip, zstd, layers, manifests, layouts and archives.

Reading is strict: what two readers could understand in two ways is refused.
"""
