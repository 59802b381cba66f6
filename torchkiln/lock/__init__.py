"""Makes, reads and writes lock files.

A lock names every byte of an image: wheels, base, tools and archives, each by hash and size. It is pure;
what a lock asks of an index or a base stands in protocols.
"""
