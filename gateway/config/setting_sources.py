"""Where settings are read from: files and environment variables, without keys that no setting has; and what is wrong
with them."""

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from gateway.errors import OperatorError

CONFIG_FILE = "turnpike.toml"
ENV_PREFIX = "TURNPIKE_"
OTHER_VARIABLES = frozenset((f"{ENV_PREFIX}KEY", f"{ENV_PREFIX}URL", f"{ENV_PREFIX}ADMIN_KEY"))
"""Variables that are not settings: the API key of clients; the gateway of commands, and their administrator's key."""


class SettingsError(OperatorError):
    """Invalid settings. The message names the key and never contains its value."""


def read_toml(settings_cls: type[BaseSettings], path: Path) -> dict[str, Any]:
    """A configuration file's keys; empty without the file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({type(error).__name__})") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from None
    unknown = sorted(set(values) - set(settings_cls.model_fields))
    if unknown:
        raise SettingsError(f"{path}: unknown key {', '.join(unknown)}{_meant(settings_cls, unknown[0])}")
    return values


def refuse_unknown_variables(settings_cls: type[BaseSettings]) -> None:
    """Reject misspelt variables, which would otherwise have no effect silently.

    Raises:
        SettingsError: a variable with the prefix that is not a setting.
    """
    for variable in sorted(os.environ):
        key = variable.upper().removeprefix(ENV_PREFIX).lower()
        if not variable.upper().startswith(ENV_PREFIX) or variable.upper() in OTHER_VARIABLES:
            continue
        if key not in settings_cls.model_fields:
            raise SettingsError(f"the variable {variable} is no setting{_meant(settings_cls, key)}: unset it")


def complaints_of(error: ValidationError) -> list[str]:
    """`key: error`, without values."""
    complaints = []
    for each in error.errors(include_url=False, include_context=False, include_input=False):
        if each["type"] == "default_factory_not_called":
            continue  # follows from an error in the key that the default depends on
        key = ".".join(str(part) for part in each["loc"])
        unknown = each["type"] == "extra_forbidden"
        complaints.append(f"{key}: {'unknown key' if unknown else each['msg'].removeprefix('Value error, ')}")
    return complaints


def xdg_folder(variable: str, fallback: str) -> Path:
    """Turnpike's folder under an XDG base directory. Relative ones are ignored, as the specification requires."""
    stated = os.environ.get(variable, "")
    base = Path(stated) if stated.startswith("/") else Path.home() / fallback
    return base / "turnpike"


def _meant(settings_cls: type[BaseSettings], key: str) -> str:
    """A suggestion for an unknown key."""
    close = get_close_matches(key, settings_cls.model_fields, 1)
    return f" (was {close[0]} meant?)" if close else ""
