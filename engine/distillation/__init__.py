"""Knowledge distillation of small draft models: a few of the teacher's layers are trained to match its distribution
(Hinton et al. 2015).

`distill` runs the stages: `answers.py` generates the teacher's answers, `teacher.py` computes its hidden states over
them, and `trainer.py` trains a `decoder.py`. The result is an ordinary model folder.
"""

from engine.distillation.distill import Distillation, Result, distill
from engine.distillation.errors import DistillationError
from engine.distillation.layers import chosen_layers
from engine.distillation.objective import Agreement
from engine.distillation.prompts import PromptError

__all__ = ["Agreement", "Distillation", "DistillationError", "PromptError", "Result", "chosen_layers", "distill"]
