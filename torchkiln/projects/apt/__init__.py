"""Resolves the Debian packages that a project requires, and makes their layers."""
