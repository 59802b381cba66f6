"""Locks the packages that a project requires for the image of a cell, and plans the image of both."""
