"""Makes, reads and writes lock files.

A lock names every byte of an image: wheels, base, tools and archives, each by hash and size. A run of
`lock` is `session.py`; `lock.py` and `components.py` make one lock and are pure. `freshness.py` decides
whether a lock still fits, `folder.py` gives a build the lock of a cell.
"""
