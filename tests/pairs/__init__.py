"""Every two values of any two flags together in some request, and what each of them promises held against the answer.

`flags` says what there is, `promises` what it promises: a new parameter is a new entry there. `covering` makes few
requests of many pairs, `reading` reads answers in either form.
"""
