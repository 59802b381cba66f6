"""What is in an image, said in the forms that others read: SPDX and CycloneDX. Pure."""
