"""Asks package indexes: it resolves requirements with uv, finds files and downloads them.

uv gets no address but that of a relay on this machine, which checks each page. Every download is checked
against the hash in the lock.
"""
