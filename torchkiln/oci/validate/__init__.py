"""Checks an OCI layout against the specification.

It shares no code with the writers, so that it does not repeat their errors.
"""
