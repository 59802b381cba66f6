"""Reads NVIDIA's CUDA toolkit archives and makes layers of them.

One rule says which files of an archive are taken and where they go.
"""
