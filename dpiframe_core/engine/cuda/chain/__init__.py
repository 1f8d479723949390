"""Products that follow one another, in one kernel compiled for them: what one makes for the next
stays in shared memory (csrc/kernels/chain/product_chain.cuh).
"""
