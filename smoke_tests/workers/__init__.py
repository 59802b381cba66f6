"""The functions that the ranks of multi-GPU checks run: (rank, world, ...) -> values for JSON."""
