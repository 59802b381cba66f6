"""Makes layers of NVIDIA's CUDA toolkit archives.

One rule determines which files of an archive are installed, and where.
"""
