"""Reconciliation: compares journal, store and invoices, event by event."""
