"""Folders in Hugging Face's layout: config.json, safetensors, rope settings."""
