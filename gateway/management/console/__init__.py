"""The console at `/console`: pages for administrators and tenants, over the same operations as the admin API.

`screens.py` says what a page is, `pages.py` lists them all, `app.py` serves them. A module of pages has
`screens(context)`; its templates lie in `templates/`.
"""
