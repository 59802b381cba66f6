"""Locks, plans, builds and checks images of projects: a cell's image, packages, and own code."""
