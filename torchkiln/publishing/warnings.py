"""Defines the warnings about images in a repository, in English; `ls --site` has them in Chinese, too."""

from __future__ import annotations

from torchkiln.util.sentences import Texts

WARNINGS: Texts = {
    "retracted": "retracted: {reason}",
    "override": "published with --override: {reason}",
    "only-for": "only for capability {capabilities}",
    "own-use": "NVIDIA's libraries are changed: for own use",
    "tag-moved": "not published as {tag}: the tag was moved",
    "retraction-ignored": "retraction ignored, not signed by a trusted key: {reason}",
    "not-cleared": "no trusted decision of the gate",
}
