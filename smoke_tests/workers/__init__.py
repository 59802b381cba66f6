"""The functions that ranks of checks with several GPUs run: (rank, world, ...) -> values for JSON."""
