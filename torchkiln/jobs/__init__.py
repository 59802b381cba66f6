"""Divides builds into jobs for several machines: writes them for other programs, or runs them on an engine.

A job is one process that may run any number of times, on any machine. Queues and machines are the engine's:
`run` needs only a `concurrent.futures.Executor`, and entry points provide them.
"""
