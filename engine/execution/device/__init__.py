"""Executes steps on a GPU: request state stays on the device, and a step uploads only what changed."""
