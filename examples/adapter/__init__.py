"""A LoRA adapter that is trained, uploaded and compared with its base model: see `README.md` in this folder."""
