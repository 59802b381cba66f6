"""Checks the image of a project: its packages and its own test. The parent image's reports prove torch."""
