"""kill -9 of the gateway, the sink and the broker at random moments under load; afterwards the books are compared.

The programs are the real ones, with an engine that makes a token of each byte, so that the reader of an answer can
count its tokens. The clients keep their own record. It must agree with the journal and with ClickHouse: `books` says
how far. 25 cycles run in the tests; `python -m tests.e2e.kill --cycles 1000` runs more of them.
"""
