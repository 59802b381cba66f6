"""Bytes -> wheels, layers, documents that nobody thought of: what is accepted is what other readers see."""
