"""The functions that the ranks of checks with several GPUs run: (rank, world, ...) -> values for JSON."""
