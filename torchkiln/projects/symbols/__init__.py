"""Checks that the shared libraries of wheels find their symbols in torch, CUDA, Python and the base."""
