"""Small models out of large ones: the teacher answers prompts, and a few of its layers learn to say what it says.

`distill` runs the stages: `answers.py` has the engine write the teacher's answers, `teacher.py` keeps its hidden states
over them, and `trainer.py` trains a `decoder.py`. What comes of it is an ordinary model folder.
"""

from engine.distillation.distill import Distillation, Result, distill
from engine.distillation.errors import DistillationError
from engine.distillation.layers import chosen_layers
from engine.distillation.objective import Agreement
from engine.distillation.prompts import PromptError

__all__ = ["Agreement", "Distillation", "DistillationError", "PromptError", "Result", "chosen_layers", "distill"]
