"""Calls kernels of every CUDA library on a GPU, to compare a thin image with the image for all GPUs."""
