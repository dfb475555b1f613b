"""The engine thread and what crosses it: step loop, output dispatch, watchdog, wait prediction."""
