"""Builds an image from a lock: it brings the parts together and writes an OCI layout.

Downloads run in threads and conversions in processes. A layer that the store already has is reused.
`build.build` is the entry point for library callers; it makes sure of base and tools, plans, and builds.
"""
