"""Everything that only a GPU can tell, in one command: `python -m benchmarks.gpu [FOLDER]`.

Are the kernels right there, does the engine say what transformers says, how near to the device's own limits is it, and
how far ahead of transformers. Stages run in processes of their own, as an error on the device ends all that its process
can do; see `benchmarks.gpu.__main__`.
"""
