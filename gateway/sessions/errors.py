"""What can go wrong with sessions."""


class SessionBusy(Exception):
    """Another turn runs on the session, and did for as long as this one may wait."""


class TooManyWaitingTurns(Exception):
    """Too many turns of one tenant wait for others on the same sessions."""


class SessionStoreAway(Exception):
    """The store of sessions does not answer, or not in time."""


class SessionStoreFull(SessionStoreAway):
    """The store answers, and has no memory left for what is to be stored. Nothing has changed."""


class UnreadableHistory(ValueError):
    """What the store holds is not a history of a known form."""
