"""Deletes the files of the cache that no tag, lock or running build needs, and verifies the others.

`cache.usage` lists the files and their users, `cache.prune` deletes, `cache.verify` finds damaged files.
"""
