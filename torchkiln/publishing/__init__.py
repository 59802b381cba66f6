"""Publishes images to a registry, verifies them there, and retracts them.

An image is published only with the gate's clearance. Its statements are uploaded before its tags are set.
"""
