"""Accesses container registries: references, logins, tokens, uploads, downloads and referrers.

Its HTTP session limits sizes, times and redirects.
"""
