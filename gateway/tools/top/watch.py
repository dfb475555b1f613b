"""Samples and renders repeatedly until the user quits."""

import asyncio
import signal
import time
from contextlib import suppress
from dataclasses import replace

from rich.console import Console, Group
from rich.live import Live

from gateway.errors import OperatorError
from gateway.tools.top.history import History
from gateway.tools.top.scrape import Scrape, ServerAway, scraping
from gateway.tools.top.screen import SMALLEST, Frame, lines
from gateway.tools.top.terminal import keys


class Watch:
    """The samples and the pressed keys, and the resulting frame.

    While paused, sampling continues, so the history has no gap, and the frame does not change.
    """

    def __init__(self, url: str, interval_s: float) -> None:
        self._history = History()
        self._frame = Frame(url, interval_s, None)
        self.over = asyncio.Event()
        self.changed = asyncio.Event()

    @property
    def frame(self) -> Frame:
        return self._frame

    async def look(self, scrape: Scrape) -> None:
        try:
            self._history.answered(await scrape())
        except ServerAway as away:
            self._history.failed(str(away), time.monotonic())
        if not self._frame.paused:
            self._show()

    def pressed(self, key: str) -> None:
        if key in ("q", "Q"):
            self.over.set()
        elif key in ("p", "P", " "):
            self._frame = replace(self._frame, paused=not self._frame.paused)
            if not self._frame.paused:
                self._show()
        elif "1" <= key <= "9":
            view = self._frame.view
            if view is not None and int(key) <= len(view.models):
                self._frame = replace(self._frame, chosen=int(key) - 1)
        self.changed.set()

    def _show(self) -> None:
        history = self._history
        self._frame = replace(
            self._frame,
            # What was last seen stays while the server is away.
            view=history.view() or (self._frame.view if history.trouble else None),
            trouble=history.trouble,
            trouble_s=time.monotonic() - history.trouble_since_s if history.trouble else 0.0,
        )
        self.changed.set()


async def once(url: str, interval_s: float) -> str:
    """One frame as plain text, in a size that fits any terminal.

    Raises:
        OperatorError: the gateway does not answer.
    """
    watch = Watch(url, interval_s)
    async with scraping(url) as scrape:
        await watch.look(scrape)
        if not watch.frame.trouble:
            await asyncio.sleep(interval_s)
            await watch.look(scrape)
    if watch.frame.trouble:
        raise OperatorError(f"{url} does not answer: {watch.frame.trouble}")
    return "\n".join(line.plain.rstrip() for line in lines(watch.frame, *SMALLEST)[:-2])


async def live(url: str, interval_s: float) -> None:
    """Run on the terminal until q or Ctrl-C."""
    watch, console = Watch(url, interval_s), Console()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, watch.over.set)
    loop.add_signal_handler(signal.SIGTERM, watch.over.set)
    loop.add_signal_handler(signal.SIGWINCH, watch.changed.set)

    async def looking(scrape: Scrape) -> None:
        while True:
            began_s = time.monotonic()
            await watch.look(scrape)
            await asyncio.sleep(max(0.0, began_s + interval_s - time.monotonic()))

    async def drawing(screen: Live) -> None:
        while True:
            width, height = console.size
            screen.update(Group(*lines(watch.frame, width, height)), refresh=True)
            await watch.changed.wait()
            watch.changed.clear()

    async with scraping(url) as scrape:
        with Live(console=console, screen=True, auto_refresh=False) as screen, keys(watch.pressed):
            tasks = [asyncio.create_task(looking(scrape)), asyncio.create_task(drawing(screen))]
            over = asyncio.create_task(watch.over.wait())
            await asyncio.wait([*tasks, over], return_when=asyncio.FIRST_COMPLETED)
            for task in (*tasks, over):
                task.cancel()
            for task in (*tasks, over):
                with suppress(asyncio.CancelledError):
                    await task
