"""Makes the suite of a project's checks, with a digest of the programs that run in its image."""

from __future__ import annotations

from pathlib import Path

from torchkiln.model.digest import digest_of_json
from torchkiln.projects.smoke.checks import IMPORT, PROBE, RULES
from torchkiln.projects.smoke.declared import DECLARED
from torchkiln.smoke.suite import Suite, SuiteCheck, load_suite
from torchkiln.smoke.suite_source import canonical


def project_suite() -> Suite:
    """The checks of a project. The digest covers the programs that run in the image, and the bounds."""
    probe = Path(__file__).with_name(PROBE).read_bytes()
    suite = load_suite()  # linkage_probe.py imports modules of it
    programs = {"rules": RULES, "values": DECLARED, "import": IMPORT, "probe": canonical(probe)}
    return Suite(
        folder=Path(__file__).parent,
        files={PROBE: probe},
        digest=digest_of_json({**programs, "suite": suite.digest}),
        checks=tuple(SuiteCheck(id=name, tier=0, values=values) for name, values in DECLARED.items()),
        not_applicable=lambda _check, _facts, _capability: None,
        expected=lambda name, _facts, _host: name,
    )
