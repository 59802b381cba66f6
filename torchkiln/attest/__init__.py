"""Signs and verifies statements about an image.

The statements are in-toto statements in DSSE envelopes: smoke reports, provenance, the gate's decision,
retractions and names. Keys, keyless signatures by Sigstore, and the trust in either are here too.
"""
