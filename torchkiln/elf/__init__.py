"""Reads ELF files, which are not trusted: section tables and dynamic symbols."""
