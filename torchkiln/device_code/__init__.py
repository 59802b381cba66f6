"""Reads the device code in a shared library, and decides which parts of it an image does not need."""
