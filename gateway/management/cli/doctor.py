"""turnpike doctor"""

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_json


def doctor(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Say what this machine has, what is missing, and how to get it.

    \b
      turnpike doctor
      turnpike doctor --json | jq '.[] | select(.state != "ok")'

    Every server that the settings name is really asked. Nothing is made or changed. Exits with 1 on a failure: Turnpike
    would not start, or not do what the settings ask. A warning is something to look at.
    """
    from dataclasses import asdict

    from gateway.doctor import State, examine

    findings = examine(settings_from(data_dir=data_dir))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            typer.echo(f"{finding.state:<8}  {finding.what}: {finding.detail}")
            if finding.remedy:
                typer.echo(f"{'':8}  -> {finding.remedy}")
    if any(finding.state is State.FAILURE for finding in findings):
        raise typer.Exit(1)
