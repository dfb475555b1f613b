"""Settings as text: their values and origins, and a configuration file to start from."""

import ast
import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

from pydantic import SecretStr

from gateway.config.setting_sources import CONFIG_FILE, ENV_PREFIX, read_toml
from gateway.config.settings import Settings
from gateway.telemetry.redaction import Redactor

DEFAULT = "default"
_COMMENT_CHARS = 100


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting for display. `value`: as JSON, without secrets. `origin`: the source that states it."""

    key: str
    value: Any
    origin: str


def shown(settings: Settings, data_dir: Path | None = None) -> list[ShownSetting]:
    """All settings in the order of their declaration. `data_dir`: the folder of the flag, if it was given."""
    here = read_toml(Settings, Path(CONFIG_FILE))
    kept = read_toml(Settings, settings.data_dir / CONFIG_FILE)
    variables = {name.upper(): name for name, value in os.environ.items() if value}

    def origin(key: str) -> str:
        if key == "data_dir" and data_dir is not None:
            return "--data-dir"
        if variable := variables.get((ENV_PREFIX + key).upper()):
            return variable
        if key in here:
            return str(Path(CONFIG_FILE).absolute())
        return str(settings.data_dir / CONFIG_FILE) if key in kept else DEFAULT

    return [ShownSetting(key, value, origin(key)) for key, value in _values(settings).items()]


def _values(settings: Settings) -> dict[str, Any]:
    """By key, as JSON; passwords are redacted."""
    values = settings.model_dump(mode="json")
    redact = Redactor(settings.secret_values()).text
    for key, value in values.items():
        if isinstance(secret := getattr(settings, key), SecretStr):
            values[key] = "(secret)" if key == "key_pepper" else redact(secret.get_secret_value())
        elif isinstance(value, Mapping):
            values[key] = _stated(value)
    return values


def _stated(value: Any) -> Any:
    """Without the members that are null, which TOML has not."""
    if isinstance(value, Mapping):
        return {key: _stated(each) for key, each in value.items() if each is not None}
    return value


def to_toml(value: Any) -> str:
    """A JSON value, without null, as a value of TOML on one line."""
    if isinstance(value, Mapping):
        members = ", ".join(f"{json.dumps(key)} = {to_toml(each)}" for key, each in value.items())
        return f"{{ {members} }}" if members else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(to_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def example_toml() -> str:
    """Every setting with its meaning and its default, commented out. Folders are those of this user."""
    meanings = _meanings()
    lines = [f"# {CONFIG_FILE}: remove the # in front of a setting to change it. Sizes take units, as in 4GiB."]
    for key, value in _values(Settings.model_construct()).items():
        lines.append("")
        lines += [f"# {line}" for line in wrap(meanings.get(key, ""), _COMMENT_CHARS)]
        lines.append(f"#{key} =" if value is None else f"#{key} = {to_toml(value)}")
    return "\n".join(lines) + "\n"


def _meanings() -> dict[str, str]:
    """The docstrings of the settings, by key."""
    (definition,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in pairwise(definition.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found
