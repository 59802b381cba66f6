"""Builds wheels from sdists and git repositories, in a sandbox."""
