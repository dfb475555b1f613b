"""Models: the configuration that every checkpoint format is read into, the network, and its loading."""
