"""Turns wheels into layers without compressing them again, and installs them as pip does.

A wheel's zip directory is checked strictly. The byte-code is made by the base's own interpreter.
"""
