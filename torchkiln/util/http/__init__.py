"""Provides HTTP for indexes and registries: a session with limits on headers, time and redirects; retries.

requests and urllib3 limit neither the total length of the headers, nor the time of a whole response, nor the
targets of redirects.
"""
