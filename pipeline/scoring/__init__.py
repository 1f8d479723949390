"""Scoring: the streaming plan on Ray Data, the scorer actors, the job that drives them."""
