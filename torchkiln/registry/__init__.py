"""Talks to container registries: references, logins, tokens, uploads, downloads and referrers.

It has its own HTTP session with limits on sizes, times and redirects.
"""
