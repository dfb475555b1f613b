"""The root of the errors that a person at the command line can do something about."""


class OperatorError(Exception):
    """Something to mend outside this program: a setting, a file, a server that is down.

    The message is one line that says what, and holds no secret. The command line shows it and exits with 1.
    """
