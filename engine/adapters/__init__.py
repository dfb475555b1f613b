"""Adapters: small changes of a model's weights, many of which share one model's memory and steps (LoRA, arXiv
2106.09685; S-LoRA, arXiv 2311.03285).

`source` names an adapter, `folder` reads and checks its files, `checker` does so in a process that can be killed,
`pool` holds the slots that running requests lease, `loader` fills them in the background.
"""
