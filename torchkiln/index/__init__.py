"""Package indexes: resolve requirements with uv, find files and download them.

uv connects to nothing but a relay on this machine, which checks each page. Every download is checked against
the hash in the lock.
"""
