"""Fitting the complexity score to a pair of models, offline."""
