"""Starts commands in images: in a root file system of its own, in crun or runc, or in a Docker engine.

The sandbox for programs of a base, and the host's NVIDIA driver as a container sees it, are here too.
"""
