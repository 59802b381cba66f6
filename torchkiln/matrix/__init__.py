"""Reads matrix.yaml and the known facts, and resolves each cell of the matrix to a build of torch.

It is pure: the facts come from `data/`, and nothing is asked of a network.
"""
