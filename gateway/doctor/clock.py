"""How far another machine's clock is from ours.

Prices take effect, days begin and keys end by each machine's own clock, limits by Redis'. A second apart, they are at
odds in nothing that a customer could see.
"""

from dataclasses import replace

from gateway.doctor.finding import Finding, State

MOST_S = 1.0


def skew_s(server_s: float, asked_s: float, answered_s: float) -> float:
    """By how much the server is ahead, at the least: it read its clock somewhere between question and answer."""
    if server_s > answered_s:
        return server_s - answered_s
    return min(server_s - asked_s, 0.0)


def with_skew(finding: Finding, skew: float) -> Finding:
    """The finding, with a warning where the clocks are too far apart."""
    if abs(skew) <= MOST_S:
        return finding
    detail = f"{finding.detail}; its clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} ours"
    remedy = "; ".join(each for each in (finding.remedy, "run chrony or another NTP client on both machines") if each)
    state = State.WARNING if finding.state is State.OK else finding.state
    return replace(finding, detail=detail, state=state, remedy=remedy)
