"""Keeps files in the cache under their content hash, with locks between processes.

What has a name in the store is whole: a file gets its name by a rename after its hash was checked.
"""
