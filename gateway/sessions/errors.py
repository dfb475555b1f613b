"""Errors of sessions."""


class SessionBusy(Exception):
    """Another turn was open on the session for as long as this one may wait."""


class TooManyWaitingTurns(Exception):
    """Too many turns of one tenant wait for other turns on their sessions."""


class SessionStoreAway(Exception):
    """The session store does not answer, or not in time."""


class SessionStoreFull(SessionStoreAway):
    """The session store answers but has no memory left. Nothing has changed."""


class UnreadableHistory(ValueError):
    """The stored value is not a history of a known format."""
