"""Models fetched by name, checkpoints of the Hugging Face Hub, and distilled models that ship as parts."""
