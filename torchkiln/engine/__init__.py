"""Builds an image from a lock and writes it to an OCI layout.

Downloads run in threads, conversions in processes; layers in the store are reused. `build.build` is the entry
point for library callers: it provides base and tools, plans, and builds.
"""
