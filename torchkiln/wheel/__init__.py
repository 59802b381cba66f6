"""Turns wheels into layers without recompressing them, and installs them as pip does.

The zip directory of a wheel is checked strictly. The image's own interpreter compiles the byte-code.
"""
