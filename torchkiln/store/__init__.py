"""Stores files in the cache under their content hash, with locks between processes.

Every file with a name in the store is complete: it is renamed after its hash was checked.
"""
