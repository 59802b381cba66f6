"""Reads the machine code for GPUs in a shared library, and decides which of it an image does not need."""
