"""Makes the part that ships of a distilled model: `python models/ship.py FOLDER smollm2 0,1,2,27,28,29 smollm2-small`.

FOLDER is what `turnpike distill` wrote, the numbers are the teacher's layers that it started from.
"""

import argparse
from pathlib import Path

from engine import catalog
from engine.catalog.assembly import pack
from engine.catalog.catalog import fetch
from gateway.config.settings import load_settings

DESCRIPTION = "Six layers distilled from SmolLM2: a draft for it, too weak to answer alone"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the part of a distilled model that ships in engine/catalog.")
    parser.add_argument("student", type=Path, help="what `turnpike distill` wrote")
    parser.add_argument("teacher", help="a name of the catalogue")
    parser.add_argument("layers", help="the teacher's that it started from, as in 0,1,29")
    parser.add_argument("name", help="the folder to make, in engine/catalog")
    arguments = parser.parse_args()
    part = pack(
        arguments.student,
        fetch(arguments.teacher, load_settings().models_dir),
        Path(catalog.__file__).parent / arguments.name,
        name=arguments.teacher,
        layers=[int(layer) for layer in arguments.layers.split(",")],
        description=DESCRIPTION,
        license="Apache-2.0",
    )
    print(part)


if __name__ == "__main__":
    main()
