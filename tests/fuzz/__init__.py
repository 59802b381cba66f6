"""Bytes -> wheels and layers that nobody thought of: what is accepted must be what other readers see."""
