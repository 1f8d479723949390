"""Benchmarks: ours and the peers on identical weights and inputs, checked equal before timed."""
