"""What can go wrong with sessions."""


class SessionBusy(Exception):
    """Another turn runs on the session, and did for as long as this one may wait."""


class SessionStoreAway(Exception):
    """The store of sessions does not answer, or not in time."""


class UnreadableHistory(ValueError):
    """What the store holds is not a history of a known form."""
