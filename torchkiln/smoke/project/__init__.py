"""Checks the image of a project: its packages and its own test. Reports of the parent image prove torch."""
