"""Builds the base image of an operating system, and the devel tools on top of it.

mmdebstrap makes a root file system of the distribution's packages. The result is one layer blob with a lock
of its own, which is kept in the store, imported and exported.
"""
