"""turnpike doctor"""

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_json


def doctor(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Check the machine and every server that the settings name, with a remedy for each problem.

    \b
      turnpike doctor
      turnpike doctor --json | jq '.[] | select(.state != "ok")'

    Nothing is created or changed. Exits with 1 on a failure: Turnpike would not start, or not work as the settings
    require. A warning does not change the exit code.
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
