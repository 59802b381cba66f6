"""Reads matrix.yaml and the facts, and resolves each cell of the matrix to a build of torch.

It is pure: the facts come from `data/`, and no network is used.
"""
