"""Packs an image, its smoke tests and their dependencies into a bundle for a GPU host without a network."""
