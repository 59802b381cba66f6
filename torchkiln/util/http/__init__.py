"""Provides HTTP for indexes and registries: retries, and limits on headers, time and redirects.

requests and urllib3 limit neither the total length of the headers, nor the time of a whole response, nor the
targets of redirects.
"""
