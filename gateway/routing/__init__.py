"""Which model answers: by name, by how hard the question looks, by how busy and how dear the models are."""
