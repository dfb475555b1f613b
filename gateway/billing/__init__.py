"""Money: what tokens cost, what a tenant owes for a month, and what it has paid in advance.

`price_store.PriceStore` keeps price versions in SQL; `price_book.PriceBook` answers for every request from memory.
`invoicing.Invoicing` turns usage into drafts and final invoices, `invoicing.Invoices` reads those and takes back from
them, `render` prints them. `credit.CreditStore` keeps what is paid in advance. `cost_view` sets engine time against
revenue. Usage is read through the protocols of `usage`. All money is integer nanodollars, and the books are only ever
added to.
"""
