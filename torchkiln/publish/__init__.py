"""Publishes images to a registry, verifies them there, and retracts them.

An image goes out only with the gate's clearance. Statements go along with it, and names are set last.
"""
