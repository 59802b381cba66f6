"""Builds the base layer of an operating system, and the devel tools on top of it.

mmdebstrap makes a root file system of the distribution's packages. The result is a layer blob with a lock;
it is stored in the cache and can be imported and exported.
"""
