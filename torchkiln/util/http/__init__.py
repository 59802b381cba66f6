"""Provides HTTP for indexes and registries: retries, and limits on headers, time and redirects."""
