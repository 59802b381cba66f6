"""`torchkiln doctor`: checks what this host has for each engine, and says how to install what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from torchkiln.build.doctor import examine
from torchkiln.cli.shared.options import json_option
from torchkiln.store.root import cache_root


@click.command()
@json_option
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Check this host. Exits with 0 if the default engine has all it needs, else with 1."""
    probes = examine(cache_root())
    if as_json:
        click.echo(json.dumps([asdict(probe) for probe in probes]))
    else:
        part = ""
        for probe in probes:
            if probe.part != part:
                part = probe.part
                click.echo(part)
            mark = click.style("ok     ", fg="green") if probe.ok else click.style("missing", fg="red")
            click.echo(f"  {mark}  {probe.what}: {probe.found}")
            if not probe.ok:
                click.echo(f"           {probe.cure}")
    context.exit(0 if all(probe.ok for probe in probes if probe.part == "embedded engine") else 1)
