"""What each rank of a check with several GPUs does: functions (rank, world, ...) -> values for JSON."""
