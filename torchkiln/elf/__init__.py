"""Reads ELF files of any origin: section tables and dynamic symbols."""
