"""GGUF files (versions 2 and 3): header, tensors, hyper-parameters and tokenizer."""
