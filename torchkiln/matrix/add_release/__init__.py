"""Adds a torch release to matrix.yaml and to the facts.

It proposes what the metadata of the release's wheels tell, and edits the two files without touching their
comments.
"""
