"""A PyTorch module traced by torch.export: its program in core operations, and what feeds it."""
