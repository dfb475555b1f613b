"""Revisions of the SQL store's schema (Alembic).

`gateway.tenancy.schema` applies them. To write the next one, change the tables, then:

    alembic -c migrations/alembic.ini revision --autogenerate --rev-id 0009 -m "what it does"

against a database that is up to date.
"""

from pathlib import Path

HEAD = max(path.name[:4] for path in Path(__file__).parent.glob("versions/[0-9]*.py"))
"""The newest revision, known without loading Alembic: files begin with their revision."""
