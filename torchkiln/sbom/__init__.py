"""Writes the software bill of materials of an image as SPDX and CycloneDX; judges its vulnerabilities.

The bill is made of the lock and of what the layers say about their packages. Trivy and Grype are the scanners
that are supported. A list of allowances names findings that are accepted for a time.
"""
