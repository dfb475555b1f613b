"""Checks of this machine and of the configured servers. Read-only: it creates and changes nothing.

Each check takes the settings and yields findings; `examination` lists the checks.
"""

from gateway.doctor.examination import examine
from gateway.doctor.finding import Finding, State

__all__ = ["Finding", "State", "examine"]
