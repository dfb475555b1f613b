"""OpenAI's chat completions, completions, embeddings and models, with vLLM's extensions."""
