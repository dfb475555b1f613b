"""The admin API: tenants, keys, limits and money, changed by people and programs with keys of their own.

Every change is written together with its line in the audit log and with the answer that a repetition of the request
gets: all three or none.
"""
