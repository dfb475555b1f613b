"""Code that more than one test module or benchmark uses: servers, fakes, clients, checkpoints, the launched program."""
