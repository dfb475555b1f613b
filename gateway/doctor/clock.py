"""Clock skew between this machine and a server.

Prices, days and key expiry follow each machine's own clock, limits follow Redis' clock. A skew of up to a second has no
visible effect.
"""

from dataclasses import replace

from gateway.doctor.finding import Finding, State

MOST_S = 1.0


def skew_s(server_s: float, asked_s: float, answered_s: float) -> float:
    """Lower bound of the server's lead in seconds: it read its clock between the request and the response."""
    if server_s > answered_s:
        return server_s - answered_s
    return min(server_s - asked_s, 0.0)


def with_skew(finding: Finding, skew: float) -> Finding:
    """The finding, with a warning if the skew exceeds `MOST_S`."""
    if abs(skew) <= MOST_S:
        return finding
    detail = f"{finding.detail}; its clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} ours"
    remedy = "; ".join(each for each in (finding.remedy, "run chrony or another NTP client on both machines") if each)
    state = State.WARNING if finding.state is State.OK else finding.state
    return replace(finding, detail=detail, state=state, remedy=remedy)
