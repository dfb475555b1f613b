"""Revisions of the SQL store's schema (Alembic).

`gateway.tenancy.schema` applies them. To write the next one, change `gateway/tenancy/tables.py`, then:

    alembic -c migrations/alembic.ini revision --autogenerate --rev-id 0009 -m "what it does"

against a database that is up to date, and move HEAD along.
"""

HEAD = "0008"
"""The newest revision, known without loading Alembic."""
