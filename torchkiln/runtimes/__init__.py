"""Runs commands in images: in Linux namespaces, or in a Docker or Podman engine.

Also holds the sandbox for untrusted programs and finds the host's NVIDIA driver.
"""
