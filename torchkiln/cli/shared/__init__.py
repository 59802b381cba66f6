"""Holds what several commands share: options, tables, progress bars, and the output of longer tasks.

A module here is no command of its own. Like all of `cli` it may print.
"""
