"""Reads matrix.yaml and the facts, and resolves each cell of the matrix to a build of torch.

It does not use the network: the facts come from `data/`.
"""
