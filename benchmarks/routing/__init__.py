"""How good the complexity score is, on questions that its fit never saw, and what routing costs."""
