"""Resolves requirements with uv, and finds and downloads files of package indexes.

uv connects only to a relay on this machine, which checks each page. Every download is checked against
the hash in the lock.
"""
