"""Runs commands in images: in Linux namespaces, with crun or runc, or in a Docker or Podman engine.

Also holds the sandbox for untrusted programs and finds the host's NVIDIA driver.
"""
