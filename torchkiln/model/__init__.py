"""Defines the data classes that pass from stage to stage.

They are frozen, typed and hashable, one module for each stage. Sizes are bytes, times are seconds, digests
are written ``sha256:<64 hex digits>``, versions are PEP 440 strings. The JSON form of a class stands in the
module that makes it.
"""
