"""Adds a torch release to matrix.yaml, and proposes its facts from the metadata of its wheels.

Comments and formatting of the files do not change.
"""
