"""Models fetched by name, and distilled models that ship with the repository as parts."""
