"""Stores files in the cache under their content hash, with locks between processes.

Every file with its final name is complete: it is renamed only after its hash was checked.
"""
