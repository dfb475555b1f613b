"""Rendering of templates."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gateway.billing.money import at_decimals, cents, dollars
from gateway.management.console.formatting import ago, micro_dollars
from gateway.management.console.screens import Refusal, Screen
from gateway.management.console.static_files import StaticFiles
from gateway.management.console.users import User


@dataclass(frozen=True, slots=True)
class PageFrame:
    """Values of the layout that every page shares. `user`: None before login. `navigation`: the screens by section.
    `here`: name of the current screen."""

    user: User | None
    title: str
    csrf: str
    theme: str
    navigation: Mapping[str, Sequence[Screen]]
    here: str = ""
    address: str = "/console"
    said: str = ""
    refused: Refusal | None = None


class TemplateRenderer:
    """Renders templates. Text is escaped; a missing value is an error."""

    def __init__(self, static: StaticFiles) -> None:
        self._environment = Environment(
            loader=PackageLoader("gateway.management.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals["static"] = static.url
        self._environment.filters["dollars"] = dollars
        self._environment.filters["cents"] = cents
        self._environment.filters["ago"] = lambda moment: ago(moment, datetime.now(UTC))
        self._environment.filters["micro_dollars"] = micro_dollars
        self._environment.filters["at_decimals"] = at_decimals
        self._environment.filters["count"] = lambda number: f"{number:,}"

    def page(self, template: str, frame: PageFrame, values: Mapping[str, Any]) -> str:
        """`once` names this rendering: a form that is sent twice carries the same."""
        return self._environment.get_template(template).render(
            user=frame.user,
            title=frame.title,
            csrf=frame.csrf,
            theme=frame.theme,
            navigation=frame.navigation,
            here=frame.here,
            address=frame.address,
            said=frame.said,
            refused=frame.refused,
            once=secrets.token_urlsafe(16),
            **values,
        )
