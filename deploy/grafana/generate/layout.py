"""Positions of panels on Grafana's grid, 24 columns wide: in reading order, a new line where one is full."""

from collections.abc import Iterator, Sequence
from typing import TypedDict

from deploy.grafana.generate.panels import Panel, Row

COLUMNS = 24


class Box(TypedDict):
    x: int
    y: int
    w: int
    h: int


def placed(rows: Sequence[Row]) -> Iterator[tuple[Panel | str, Box]]:
    """Each row's title and then its panels, each with its box. No two overlap."""
    y = 0
    for row in rows:
        yield row.title, Box(x=0, y=y, w=COLUMNS, h=1)
        y += 1
        x = line_height = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            yield panel, Box(x=x, y=y, w=panel.width, h=panel.height)
            x += panel.width
            line_height = max(line_height, panel.height)
        y += line_height
