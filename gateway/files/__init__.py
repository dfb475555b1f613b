"""Files of tenants: inputs and outputs of batches, and other data.

records     `StoredFile`: the facts of one file
contents    where the bytes are: an interface, and the local folder
store       the rows of files in the SQL database: limits by tenant, pages, expiry
sweeping    the end of files: those that have expired, and contents without a row
tables      the SQL table
"""
