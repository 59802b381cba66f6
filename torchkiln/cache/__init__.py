"""Shows the content and the users of the cache, and deletes what is not needed.

`cache.usage` reads the store, `cache.policy` decides and is pure, `cache.prune` deletes and repairs.
"""
