"""Writes an image's software bill of materials as SPDX and CycloneDX, and checks it for vulnerabilities.

The bill combines the lock with the package metadata in the image. Trivy and Grype are the supported scanners.
"""
