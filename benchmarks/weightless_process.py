"""The weightless model's engine as a child process: started by `benchmarks.weightless`."""

from benchmarks.weightless import engine_of
from engine.engine import Engine
from engine.runtime.model_loading import LoadProgress
from engine.workers.messages import Start
from engine.workers.process import main


def load(start: Start, _progress: LoadProgress) -> Engine:
    """In place of the process's own."""
    (path,) = start.models.values()
    return engine_of(Engine, path, start.config.scheduler.classes)


if __name__ == "__main__":
    main(load)
