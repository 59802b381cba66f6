"""Reads the device code (machine code and PTX for GPUs) in a shared library, and finds what an image can omit."""
