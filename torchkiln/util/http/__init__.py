"""HTTP for indexes and registries: one session with limits on headers, time and redirects; retries.

The libraries (requests, urllib3, tenacity) limit neither the length of all headers, nor the time that a whole
answer takes, nor where a redirect may lead.
"""
