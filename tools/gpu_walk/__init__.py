"""Calls kernels of every library of an image on a GPU, to compare an image for some GPUs with the full one."""
