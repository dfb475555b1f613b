"""Regular expressions of a checkpoint's config, which is untrusted."""

import re

from engine.checkpoints.json_keys import Keys, shown

_MAX_LENGTH = 512
_MAX_REPEATS = 4
_REPEAT = re.compile(r"(?<!\\)(?:[*+]|\{\d)")
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{)")
_UNBOUNDED = re.compile(r"\(\?[^:]|\\[1-9]")


def compiled(keys: Keys, key: str, pattern: str) -> re.Pattern[str]:
    """A pattern that matches any module's name in bounded time: few repeats, none of them of a group.

    Raises:
        UnsupportedCheckpoint: it is no pattern, or not such a one; the message names the key.
    """
    if len(pattern) > _MAX_LENGTH or len(_REPEAT.findall(pattern)) > _MAX_REPEATS:
        raise keys.refuse(key, f"pattern {shown(pattern)} is too long or has more than {_MAX_REPEATS} repeats")
    if _REPEATED_GROUP.search(pattern) or _UNBOUNDED.search(pattern):
        raise keys.refuse(key, f"pattern {shown(pattern)} repeats a group, or looks around or back")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise keys.refuse(key, f"{shown(pattern)} is not a pattern ({error})") from error
