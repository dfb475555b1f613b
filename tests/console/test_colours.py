"""Contrast in both themes, computed from the stylesheet's variables as WCAG 2.2 defines it."""

import re
from importlib.resources import files

import pytest

TEXT_RATIO = 4.5
PART_RATIO = 3.0
"""Of what shows where a control is, and of what has the focus."""
THEMES = ("light", "dark")

STATIC = files("gateway.management.console").joinpath("static")
SCREEN_SHEETS = sorted(
    each.name for each in STATIC.iterdir() if each.name.endswith(".css") and not each.name.endswith("_print.css")
)


def variables(name: str) -> dict[str, dict[str, str]]:
    """The colours of a stylesheet by theme: `--text: light-dark(#1b2124, #e4e8ea)`."""
    stated = re.findall(
        r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", STATIC.joinpath(name).read_text("utf-8")
    )
    return {theme: {name: each[at] for name, *each in stated} for at, theme in enumerate(THEMES)}


COLOURS = variables("console.css")
SERIES = variables("observe.css")


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize(("one", "other", "ratio"), [("#000000", "#ffffff", 21.0), ("#777777", "#ffffff", 4.48)])
def test_the_measure_is_the_one_of_wcag(one: str, other: str, ratio: float) -> None:
    assert contrast(one, other) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    ("text", "back"),
    [
        *((text, back) for text in ("text", "quiet", "accent", "bad") for back in ("page", "card")),
        ("on-accent", "accent"),
        *((tone, f"{tone}-back") for tone in ("good", "bad", "warn")),
    ],
)
def test_text_can_be_read(theme: str, text: str, back: str) -> None:
    assert contrast(COLOURS[theme][text], COLOURS[theme][back]) >= TEXT_RATIO


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("back", ["page", "card"])
@pytest.mark.parametrize("part", ["control", "accent"])
def test_controls_and_the_focus_stand_out(theme: str, part: str, back: str) -> None:
    assert contrast(COLOURS[theme][part], COLOURS[theme][back]) >= PART_RATIO


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("series", sorted(SERIES["light"]))
def test_the_series_of_a_chart_stand_out_from_its_card(theme: str, series: str) -> None:
    assert contrast(SERIES[theme][series], COLOURS[theme]["card"]) >= PART_RATIO


@pytest.mark.parametrize("name", SCREEN_SHEETS)
def test_no_colour_is_stated_outside_the_variables(name: str) -> None:
    """A colour of one theme alone would be unseen in the other. Paper has one theme."""
    screen = STATIC.joinpath(name).read_text("utf-8").partition("@media print")[0]
    rules = re.sub(r"--[\w-]+: light-dark\(.*?\);|/\*.*?\*/", "", screen, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-f]{3,8}\b|rgba?\(|hsla?\(", rules) == []
