"""Models that are fetched by name, and the ones that ship with the repository in parts."""
