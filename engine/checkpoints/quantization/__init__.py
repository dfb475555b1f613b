"""Quantised formats of Hugging Face folders. `scheme` is the seam, `registry` lists the formats, `layers` finds the
quantised layers among a folder's tensors."""
