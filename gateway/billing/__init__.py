"""Billing: prices of tokens, monthly invoices, and prepaid credit.

`price_store.PriceStore` keeps price versions in SQL, and `price_book.PriceBook` answers every request from memory.
`invoicing.Invoicing` turns usage into drafts and final invoices, `invoicing.InvoiceStore` reads them, and `render`
formats them. `credit.CreditStore` keeps prepaid credit. `cost_view` compares the cost of engine time with revenue.
Usage is read through the protocols of `usage`. All money is integer nanodollars, and the books are append-only.
"""
