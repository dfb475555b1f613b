"""turnpike doctor"""

import typer

from gateway.cli.options import DataDir, settings_from


def doctor(data_dir: DataDir = None) -> None:
    """Say what this machine has, what is missing, and how to get it. Exits with 1 when Turnpike cannot serve."""
    from gateway.doctor import examine

    findings = examine(settings_from(data_dir=data_dir))
    for finding in findings:
        typer.echo(f"{finding.state:<8}  {finding.what}: {finding.detail}")
        if finding.remedy:
            typer.echo(f"{'':8}  -> {finding.remedy}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)
