"""Hugging Face folders: config.json, safetensors, rope settings and tokenizer."""
