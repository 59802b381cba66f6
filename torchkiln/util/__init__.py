"""Contains helpers for files, JSON, YAML, versions, processes and HTTP; none is specific to images."""
