"""Shows what the cache holds and who needs it, and deletes what nobody needs.

`cache.usage` looks at the store, `cache.policy` decides and is pure, `cache.prune` deletes and repairs.
"""
