"""What this machine has of what Turnpike needs. Looks only: makes no file and changes nothing.

Each check takes the settings and yields findings; `examination` has the list of them.
"""

from gateway.doctor.examination import examine
from gateway.doctor.finding import Finding, State

__all__ = ["Finding", "State", "examine"]
