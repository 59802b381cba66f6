"""ClearedImage -> what is said of it in public: by which policy, what was seen, and why in spite of what."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torchkiln import __version__, hosts
from torchkiln.attestation import told_of
from torchkiln.gate import ClearedImage
from torchkiln.statement import Statement, payload, statement

CLEARANCE = "urn:torchkiln:clearance:1"


def clearance(cleared: ClearedImage) -> Statement:
    """The gate's decision; the same decision gives the same bytes."""
    judged = cleared.judged
    said: dict[str, Any] = {
        "tool": __version__,
        "override": cleared.override,
        "missing": [{"what": what, "why": why} for what, why in judged.missing],
        "policy": {
            "tiers": list(judged.policy.tiers),
            "checks": list(judged.policy.checks),
            "gpus": list(judged.policy.gpus),
            "signed": judged.policy.signed,
            "report_age": judged.policy.report_age,
        },
        "suite": judged.suite,
        "checks": [
            {
                "check": one.check,
                "tier": one.tier,
                "demanded": one.required,
                "outcome": one.outcome,
                "fact": one.fact,
            }
            for one in judged.standings
        ],
        "reports": [
            {
                "verdict": witness.report.verdict,
                "when": witness.report.when,
                "gpus": hosts.kinds(json.loads(witness.report.host)),
                "sha256": hashlib.sha256(payload(told_of(witness.report))).hexdigest(),
            }
            for witness in judged.witnesses
            if witness.report.image == judged.image
        ],
    }
    return statement(judged.tag, judged.image, CLEARANCE, said)
