"""Checks the image of a project: what its packages promise, beside the proof of the parent image."""
