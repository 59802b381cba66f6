"""Makes, reads and writes lock files.

A lock has the hash and size of every file of an image: wheels, base, tools and archives. `session.py` locks
several cells in one run; `lock.py` and `thin.py` make one lock and are pure. `freshness.py` decides whether
a lock is stale. `folder.py` loads the lock of a cell for a build.
"""
