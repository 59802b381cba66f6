"""`torchkiln doctor`: checks what this host has for each engine, and says how to install what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.options import json_option
from torchkiln.cli.shared.tables import beside
from torchkiln.engine.doctor import examine
from torchkiln.errors import printable
from torchkiln.store.store import cache_root


@click.command()
@json_option
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Try what a build needs: namespaces, programs, disk, index, engine; name the packages that are missing.

    Exits with 0 if the default engine has all it needs, else with 1.
    """
    probes = examine(cache_root(), _reach_index)
    if as_json:
        click.echo(json.dumps([asdict(probe) for probe in probes]))
    else:
        part = ""
        for probe in probes:
            if probe.part != part:
                part = probe.part
                terminal.echo(part)
            mark = click.style("ok     ", fg="green") if probe.ok else click.style("missing", fg="red")
            width = terminal.columns(err=False)
            # Added after the text is wrapped: escape sequences would count as columns.
            text = beside(" " * 11, printable(f"{probe.what}: {probe.found}"), width)
            click.echo(f"  {mark}  {text.lstrip()}")
            if not probe.ok:
                terminal.echo(beside(" " * 11, probe.cure, width))
    context.exit(0 if all(probe.ok for probe in probes if probe.part == "embedded engine") else 1)


def _reach_index() -> str:
    """Request a page from the default index; returns its host."""
    import os

    from torchkiln.index.package_index import open_index
    from torchkiln.index.settings import host_of
    from torchkiln.model.cell import Source
    from torchkiln.store.store import Store
    from torchkiln.util.scratch import scratch

    with scratch("doctor") as folder:
        index = open_index(os.environ, Store(folder))
        index.demand_reachable((Source.DEFAULT,))
    return host_of(index.pages.settings.default_url)
