"""Where data lie: addresses, and object stores behind them."""
