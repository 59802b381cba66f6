"""Checks an OCI layout against the specification.

It shares no code with the writers, so that a misunderstanding in one does not hide in the other.
"""
