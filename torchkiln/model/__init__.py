"""Defines the data classes that pass from stage to stage.

They are frozen, typed and hashable; there is one module for each stage. Sizes are bytes, times are seconds,
digests are written ``sha256:<64 hex digits>``, versions are PEP 440 strings. The module that creates a class
defines its JSON form.
"""
