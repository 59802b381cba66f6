"""Helps with files, JSON, YAML, versions, processes and retries.

Nothing here knows about images.
"""
