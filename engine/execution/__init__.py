"""Running a step: the slots that hold each running request's state, the model, the sampler."""
