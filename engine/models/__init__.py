"""Models: what a checkpoint says (`config`, `checkpoint`), the file formats it comes in, and the network."""
