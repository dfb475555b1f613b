"""Batches: files of requests that run when the engine has room, within 24 hours, at half the price.

    records      `Batch`, its states and the edges between them
    tables       the SQL table
    store        rows: creation, pages, changes of state, counts, leases
    input_lines  the lines of an input file, and their check
    results      answers on the disk, line by line, under a lock
    line_log     the usage log of lines: keeps their events until their answers are on the disk
    line_call    a line as a call of its endpoint
    line_run     a line until it has a final answer
    batch_run    one batch, from its state to its end
    finishing    the output and error files of a batch
    runner       claims batches, runs them, and sweeps files
    metrics      lines and batches by state

A line is billed once. Its answer and its usage event, whose id follows from the batch and the line, are synced to the
batch's results before the event is given to the journal. After a crash the events of results without a mark are looked
up by id in the journals, and those that are missing are recorded. A line without a result runs again; nothing of its
former run was billed.
"""
