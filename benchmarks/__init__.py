"""What was measured, and how to measure it again. Every figure stands beside a peer or a limit of the same run."""
