"""Adapters of tenants: fine-tuned variants of served models, each a model name that belongs to one tenant.

`records` has their values, `names` their names, `tables` their SQL tables; `changes` and `queries` write and read them
within the caller's transaction, `limits` bounds a tenant's number and bytes of them. `files` stores the PEFT folders
under the digest of their content, and the parts of uploads. `book` answers every request from memory. `hosting`
accepts an adapter for management operations.
"""
