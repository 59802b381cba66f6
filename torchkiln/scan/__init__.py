"""Runs a vulnerability scanner on an image and judges its report.

Trivy and Grype are supported. A list of allowances names findings that are accepted for a time.
"""
