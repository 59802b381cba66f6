"""Decides what the proof of an image says about the image of a project on it."""
