"""As many rounds as one likes: `python -m tests.fuzz --minutes 10 --seed 7`, or one again: `--seed 7 --round 31`.

Exit code 1 where an answer was wrong, a neighbour's text changed, or something was left over.
"""

import argparse
import asyncio
import itertools
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.fuzz.serving import serving

REPORT_EVERY = 10


async def run(campaign: Campaign, minutes: float, only: int | None) -> int:
    """How many rounds there were."""
    await campaign.begin()
    if only is not None:
        await campaign.round(only)
        return 1
    started = time.monotonic()
    for number in itertools.count():
        await campaign.round(number)
        if (number + 1) % REPORT_EVERY == 0:
            print(f"{number + 1} rounds, answers by status: {dict(campaign.statuses)}", flush=True)
        if campaign.findings or time.monotonic() - started > 60 * minutes:
            campaign.end()
            return number + 1
    raise AssertionError("there is always another round")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--round", type=int)
    options = parser.parse_args()

    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as served:
        campaign = Campaign(served, options.seed)
        rounds = asyncio.run(run(campaign, options.minutes, options.round))
    for finding in campaign.findings:
        print(f"WRONG: {finding}")
    print(
        f"{rounds} rounds, {campaign.statuses.total()} answers, {len(campaign.findings)} findings, seed {options.seed}"
    )
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    sys.exit(main())
