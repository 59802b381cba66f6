"""Shows what is in the cache and which images need it, and deletes what is not needed.

`cache.usage` reads the store, `cache.policy` decides and is pure, `cache.prune` deletes and repairs.
"""
