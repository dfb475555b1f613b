"""Stores that a former version has filled, opened by this one.

What a former version wrote is written out here by hand, digests included: made by today's code, it would change with
that code, and a change that loses what is there would not be noticed.
"""
