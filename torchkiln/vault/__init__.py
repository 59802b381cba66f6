"""Keeps all files that locks name, by SHA-256, in a folder or a registry, and reads them from there."""

VARIABLE = "TORCHKILN_VAULT"
"""Names the vaults, separated by spaces, in the order in which they are asked."""
